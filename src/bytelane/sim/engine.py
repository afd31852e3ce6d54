"""Ask the simulator: a job, a cluster, and a policy or a plan; back come times and a trace."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

import msgspec
import numpy as np

from bytelane.cluster import Cluster
from bytelane.core import Pieces, Plan, Policy, require_plannable
from bytelane.core.kernel import FUSION, State
from bytelane.core.table import plan_state, policy_state
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim import kernel
from bytelane.sim.fluid import optimal_iteration_s
from bytelane.sim.kernel import Log, Now, Work
from bytelane.sim.layout import (
    ITERATIONS_WITH_JITTER,
    Jitter,
    Moments,
    computing_s,
    in_seconds,
    lay_out,
    make_log,
    make_now,
    step_durations_s,
)
from bytelane.sim.story import compute_spans, link_shares, link_use, transfer_spans
from bytelane.trace import Trace

Run = Callable[[State, Work, Now, Log], None]
Engine = Literal["auto", "compiled", "interpreted"]

# When a backward pass starts, all tensors have arrived and the link is idle, so every iteration
# but the first takes the same time.
ITERATIONS = 4
# Workers that differ need longer until they are in step.
ITERATIONS_UNTIL_IN_STEP = 16
# The trace shows two of them and what was still on the link when the first began.
KEPT = 3
# With jitter one iteration tells little: all that are measured, and the one before.
KEPT_WITH_JITTER = ITERATIONS_WITH_JITTER // 2 + 1
# What the compiled kernel does in about two seconds, in which nothing can interrupt it. A step of
# computing or a transfer costs as much as looking at this many workers and lanes.
MOST_LOOKS, LOOKS_PER_EVENT = 10**9, 100
# Loading compiled code costs as much as interpreting this many steps and operations (0.5 s).
WORTH_COMPILING = 8000


class Simulation(msgspec.Struct, frozen=True):
    """What the simulator found."""

    job: Job
    cluster: Cluster
    schedule: Policy | Plan
    iteration_s: float
    """Forward start to forward start, in the steady state."""
    spread_s: float
    """Standard deviation over iterations; zero without jitter."""
    compute_s: float
    """What an iteration takes without communication, on the slowest worker."""
    communication_s: float
    """How long its messages keep the busiest link in an iteration, if they never have to wait."""
    log: Moments | None
    """None for the optimum, which is a bound and not a schedule."""
    pieces: Pieces

    @property
    def bound_s(self) -> float:
        """No schedule of these operations is faster: both resources are needed in full."""
        return max(self.compute_s, self.communication_s)

    @property
    def optimal_s(self) -> float:
        """No schedule at all is faster, with the job's dependencies and an ideal link."""
        return optimal_iteration_s(self.job, self.cluster)

    @property
    def policy(self) -> str:
        """The policy's name, also of a plan that was made by one."""
        return self.schedule.policy if isinstance(self.schedule, Plan) else self.schedule.name

    @property
    def operations(self) -> int:
        """How many are sent in an iteration."""
        return self.pieces.operation_count if self.cluster.wire_factor else 0

    @property
    def trace(self) -> Trace:
        """The first worker's last iterations; transfers are complete for all but the last."""
        log = self._need_log().last(KEPT)
        starts = log.iteration_start[0, -1 - KEPT :] - log.iteration_start[0, -1 - KEPT]
        stages = [stage.name for stage in self.schedule.stages]
        copies = log.iteration_start.shape[0] if self.cluster.sync == "ps" else 1
        sent = transfer_spans(self.job, self.pieces, log, stages, copies)
        spans = (*compute_spans(self.job, log), *sent)
        shares = link_shares(self.schedule, self.cluster)
        link = tuple(link_use(self.pieces, log, shares, copies))
        return Trace("simulator", spans, dict(enumerate(starts.tolist())), link)

    def plan(self, version: int = 1) -> Plan:
        """Write down in which order the operations were launched."""
        if isinstance(self.schedule, Plan):
            return msgspec.structs.replace(self.schedule, version=version)
        log = self._need_log()
        require_plannable(self.schedule)
        begins = log.last(KEPT).sending[0].reshape(len(self.schedule.stages), -1)
        order, *gathered = np.argsort(begins, kind="stable").tolist()
        messages: dict[float, list[int]] = {}
        for operation in order:
            # Operations that begin together on a serial link are one message.
            key = begins[0, operation] if self.schedule.fusion_bytes else operation
            messages.setdefault(key, []).append(operation)
        return Plan.record(
            self.schedule, self.job, self.pieces, list(messages.values()), version, *gathered
        )

    def _need_log(self) -> Moments:
        if self.log is None:
            raise InputError("the optimum is a bound, not a schedule: it has no trace or plan")
        return self.log


def simulate(
    job: Job,
    cluster: Cluster,
    schedule: Policy | Plan,
    engine: Engine = "auto",
    jitter: Jitter | None = None,
) -> Simulation:
    """Simulate training until the steady state."""
    if isinstance(schedule, Policy) and schedule.preemptive:
        return _optimum(job, cluster, schedule, jitter)
    differing = jitter is not None or len(set(cluster.compute_factors)) > 1
    workers = cluster.workers if differing else 1
    iterations, kept = ITERATIONS if workers == 1 else ITERATIONS_UNTIL_IN_STEP, KEPT
    if jitter is not None:
        iterations, kept = ITERATIONS_WITH_JITTER, KEPT_WITH_JITTER
    if differing:
        different = workers if jitter is not None else len(set(cluster.compute_factors))
        _require_feasible(job, cluster, schedule, different, iterations)
    step_s = step_durations_s(job, cluster, workers, jitter)
    state = _state(job, cluster, schedule, workers)
    work, ticks_per_s = lay_out(job, cluster, schedule, state, step_s)
    log = make_log(work, iterations, kept)
    size = workers * (step_s.shape[2] + state.size.size) * iterations // ITERATIONS
    find_runner(engine, size)(state, work, make_now(job, state, work), log)
    times_s = np.diff(log.iteration_start, axis=1)[:, iterations // 2 :] / ticks_per_s
    return Simulation(
        job=job,
        cluster=cluster,
        schedule=schedule,
        iteration_s=float(times_s.mean(axis=1).max()),
        spread_s=float(times_s.mean(axis=0).std()) if jitter else 0.0,
        compute_s=computing_s(step_s),
        communication_s=busiest_link_ticks(work, state, log) / ticks_per_s,
        log=in_seconds(log, ticks_per_s),
        pieces=_pieces(job, schedule),
    )


def _require_feasible(
    job: Job, cluster: Cluster, schedule: Policy | Plan, different: int, iterations: int
) -> None:
    """Refuse what would take the kernel too long: at every instant it looks at all workers."""
    workers = cluster.workers
    lanes = len(schedule.stages) * (workers if cluster.sync == "ps" else 1)
    steps, sent = job.columns.step_s.size, _pieces(job, schedule).operation_count
    instants = different * (steps + len(schedule.stages) * sent)
    events = workers * steps + lanes * sent
    looks = iterations * (instants * (workers + lanes) + events * LOOKS_PER_EVENT)
    if looks > MOST_LOOKS:
        raise InputError(
            f"{workers:,} workers that differ, {steps:,} steps of computing and {sent:,} pieces "
            f"in each of {iterations} iterations are {looks / MOST_LOOKS:,.1f} times as much as "
            "is simulated; use fewer workers or larger pieces"
        )


def _optimum(job: Job, cluster: Cluster, policy: Policy, jitter: Jitter | None) -> Simulation:
    if jitter is not None:
        raise InputError("the optimum is computed exactly, without jitter; leave that out")
    bytes_s = cluster.load_factor * job.total_bytes / cluster.link.rate
    return Simulation(
        job=job,
        cluster=cluster,
        schedule=policy,
        iteration_s=optimal_iteration_s(job, cluster),
        spread_s=0.0,
        compute_s=computing_s(step_durations_s(job, cluster, 1, None)),
        communication_s=bytes_s,
        log=None,
        pieces=_pieces(job, policy),
    )


def find_runner(engine: Engine, size: int) -> Run:
    """Return the kernel's loop, compiled or as it stands: the results are the same bit for bit."""
    if engine == "interpreted" or (engine == "auto" and not _worth_compiling(size)):
        return kernel.run
    from bytelane.sim.compiled import run_compiled

    return run_compiled


def _worth_compiling(size: int) -> bool:
    loaded = "bytelane.sim.compiled" in sys.modules
    return loaded or (size >= WORTH_COMPILING and find_spec("numba") is not None)


def _pieces(job: Job, schedule: Policy | Plan) -> Pieces:
    return schedule.cut(job) if isinstance(schedule, Policy) else schedule.pieces


def _state(job: Job, cluster: Cluster, schedule: Policy | Plan, workers: int) -> State:
    if isinstance(schedule, Policy):
        own_lanes = cluster.sync == "ps"
        return policy_state(schedule, job, workers=workers, own_lanes=own_lanes)
    if cluster.sync == "ps":
        raise InputError("a plan is an order of all-reduces; this cluster has servers")
    return plan_state(schedule, workers=workers)


def busiest_link_ticks(work: Work, state: State, log: Log) -> float:
    """Return how long its messages keep it in an iteration, whenever they are sent.

    They leave it one after the other, and are handled so: whatever takes longer. Where messages may
    be fused the log tells which they were.
    """
    links = work.link[state.lane]
    sending, handling = np.zeros((2, max(work.link.tolist()) + 1), dtype=np.int64)
    iterations = 1
    if not state.counters[:, FUSION].any():
        np.add.at(sending, links, work.send_ticks)
        np.add.at(handling, links, work.floor_ticks[state.lane])
    else:
        iterations = len(log.sent)
        for moments in zip(log.sending, log.sent, log.handling, log.handled, strict=True):
            columns = (column.tolist() for column in (links, *moments))
            # What travels in one message is on the link at the same time, and counts once.
            for link, began, sent, held, let_go in set(zip(*columns, strict=True)):
                sending[link] += sent - began
                handling[link] += let_go - held
    # In whole numbers: ticks may be too many for a float to count.
    busiest: int = max(*sending.tolist(), *handling.tolist())
    return busiest / iterations
