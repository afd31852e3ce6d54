"""Evaluate policies fast, for tuners and sweeps: iteration times from one simulated iteration.

From the start of a backward pass to the next one, all that matters happens just once. So a single
iteration gives the times that ``simulate`` finds, to the last bit.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import msgspec

from bytelane.cluster import Cluster
from bytelane.core import Policy
from bytelane.core.knobs import UNLIMITED
from bytelane.core.table import policy_state, set_windows
from bytelane.job import Job
from bytelane.sim.engine import Engine, find_runner, simulate
from bytelane.sim.kernel import STEP
from bytelane.sim.layout import computing_s, lay_out, make_log, make_now, step_durations_s
from bytelane.sim.network.serial_layout import busiest_link_ticks, make_flights


class Times(NamedTuple):
    """The times that a simulation finds, without its log."""

    iteration_s: float
    compute_s: float
    communication_s: float


def evaluate(job: Job, cluster: Cluster, policy: Policy, engine: Engine = "compiled") -> float:
    """Return just the iteration time in seconds."""
    if _is_not_that_simple(cluster, policy):
        return simulate(job, cluster, policy, engine).iteration_s
    return _Course(job, cluster, policy, engine).iteration_s(policy)


def evaluate_each(
    job: Job, cluster: Cluster, policies: Iterable[Policy], engine: Engine = "compiled"
) -> list[float]:
    """Return the iteration time under each policy, in seconds.

    Neighbours that differ in their windows alone, as when only the credit is turned, are laid out
    once: that is much faster than a call of ``evaluate`` for each.
    """
    return [times.iteration_s for times in times_each(job, cluster, policies, engine)]


def times_each(
    job: Job, cluster: Cluster, policies: Iterable[Policy], engine: Engine
) -> Iterator[Times]:
    """Yield the times under each policy, laid out as in ``evaluate_each``."""
    for common, alike in groupby(policies, key=_but_for_windows):
        if _is_not_that_simple(cluster, common):
            for policy in alike:
                found = simulate(job, cluster, policy, engine)
                yield Times(found.iteration_s, found.compute_s, found.communication_s)
        else:
            course = _Course(job, cluster, common, engine)
            yield from map(course.times, alike)


def _is_not_that_simple(cluster: Cluster, policy: Policy) -> bool:
    """Workers that differ have to get in step first; the optimum is not simulated at all."""
    return len(set(cluster.compute_factors)) > 1 or policy.preemptive


def _but_for_windows(policy: Policy) -> Policy:
    stages = tuple(msgspec.structs.replace(s, window=UNLIMITED) for s in policy.stages)
    return msgspec.structs.replace(policy, stages=stages)


class _Course:
    """An iteration, laid out once, that can be run many times under different windows."""

    def __init__(self, job: Job, cluster: Cluster, policy: Policy, engine: Engine) -> None:
        self._job = job
        self._state = policy_state(policy, job, own_queues=cluster.sync == "ps")
        self._step_s = step_durations_s(job, cluster, 1, None)
        self._work, self._network, self._ticks_per_s = lay_out(
            job, cluster, policy, self._state, self._step_s, mark=2 * len(job.layers)
        )
        # Only the log tells which operations shared a message.
        self._log = make_log(self._state, self._work, 1, kept=1 if policy.fusion_bytes else 0)
        self._run = find_runner(engine, 0)

    def iteration_s(self, policy: Policy) -> float:
        # At the end of an iteration the state has reset itself for the next.
        set_windows(self._state, [stage.window for stage in policy.stages])
        now = make_now(self._job, self._state, self._work)
        flights = make_flights(self._network, self._state)
        now.counters[:, STEP] = self._work.mark
        self._log.iteration_start.fill(-1)
        self._log.rounds.fill(0)
        self._run(self._state, self._work, now, self._network, flights, self._log)
        return float(self._log.iteration_start[0, 1]) / self._ticks_per_s

    def times(self, policy: Policy) -> Times:
        return Times(self.iteration_s(policy), self._compute_s, self._communication_s)

    @cached_property
    def _compute_s(self) -> float:
        return computing_s(self._step_s)

    @property
    def _communication_s(self) -> float:
        return busiest_link_ticks(self._network, self._state, self._log) / self._ticks_per_s
