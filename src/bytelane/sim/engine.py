"""Simulate a job on a cluster under a policy or a plan: iteration times, a trace, a plan."""

import sys
from importlib.util import find_spec
from typing import Literal

import msgspec
import numpy as np

from bytelane.cluster import Cluster
from bytelane.core import Knobs, Pieces, Plan, Policy, require_plannable
from bytelane.core.kernel import State
from bytelane.core.table import plan_state, policy_state
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim.assembly import Run, interpreted
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
from bytelane.sim.network.serial_layout import busiest_link_ticks, make_flights
from bytelane.sim.optimal import optimal_iteration_s
from bytelane.sim.spans import compute_spans, link_shares, link_use, transfer_spans
from bytelane.trace import Trace

Engine = Literal["auto", "compiled", "interpreted"]

# When a backward pass starts, all tensors have arrived and the link is idle, so every iteration
# but the first takes the same time.
ITERATIONS = 4
# Workers that differ need longer until they are in step.
ITERATIONS_UNTIL_IN_STEP = 16
# The trace shows two of them and what was still on the link when the first began.
KEPT = 3
# With jitter one iteration tells little: keep all that are measured, and the one before.
KEPT_WITH_JITTER = ITERATIONS_WITH_JITTER // 2 + 1
# What the compiled kernel does in about 2 s, in which nothing can interrupt it. A step of computing
# or a transfer costs as much as looking at LOOKS_PER_EVENT workers and queues.
MOST_LOOKS, LOOKS_PER_EVENT = 10**9, 100
# Loading compiled code costs as much as interpreting this many steps and operations (0.5 s).
WORTH_COMPILING = 8000


class Simulation(msgspec.Struct, frozen=True):
    """The result of a simulation."""

    job: Job
    cluster: Cluster
    schedule: Policy | Plan
    iteration_s: float
    """Forward start to forward start, in the steady state."""
    spread_s: float
    """Standard deviation over iterations; zero without jitter."""
    compute_s: float
    """Time per iteration without communication, on the slowest worker."""
    communication_s: float
    """How long messages occupy the busiest link per iteration, without any waiting."""
    log: Moments | None
    """None for the optimum, which is a bound and not a schedule."""
    pieces: Pieces
    knobs: Knobs = Knobs()
    """The policy's knobs, if the caller of ``simulate`` gave them."""

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
        """The name of the policy, or of the policy that made the plan."""
        return self.schedule.policy if isinstance(self.schedule, Plan) else self.schedule.name

    @property
    def operations(self) -> int:
        """Number of operations per iteration; 0 if nothing has to be sent."""
        return self.pieces.operation_count if self.cluster.wire_factor else 0

    @property
    def trace(self) -> Trace:
        """The first worker's last iterations; transfers are complete for all but the last."""
        log = self._need_log().last(KEPT)
        starts = log.iteration_start[0, -1 - KEPT :] - log.iteration_start[0, -1 - KEPT]
        stages = [stage.collective for stage in self.schedule.stages]
        copies = log.iteration_start.shape[0] if self.cluster.sync == "ps" else 1
        sent = transfer_spans(self.job, self.pieces, log, stages, copies)
        spans = (*compute_spans(self.job, log), *sent)
        shares = link_shares(self.schedule, self.cluster)
        link = tuple(link_use(self.pieces, log, shares, copies))
        return Trace("simulator", spans, dict(enumerate(starts.tolist())), link)

    def plan(self, version: int = 1) -> Plan:
        """Record the order in which the operations were launched as a plan."""
        if isinstance(self.schedule, Plan):
            return msgspec.structs.replace(self.schedule, version=version)
        log = self._need_log()
        require_plannable(self.schedule)
        begins = log.last(KEPT).sending[0].reshape(len(self.schedule.stages), -1)
        order, *later_orders = np.argsort(begins, kind="stable").tolist()
        messages: dict[float, list[int]] = {}
        for operation in order:
            # Operations that begin together on a serial link are one message.
            key = begins[0, operation] if self.schedule.fusion_bytes else operation
            messages.setdefault(key, []).append(operation)
        return Plan.record(
            self.schedule, self.job, self.pieces, list(messages.values()), version, later_orders
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
    *,
    knobs: Knobs | None = None,
) -> Simulation:
    """Simulate training until the steady state; the result keeps the knobs of its schedule."""
    found = _simulate(job, cluster, schedule, engine, jitter)
    return found if knobs is None else msgspec.structs.replace(found, knobs=knobs)


def _simulate(
    job: Job, cluster: Cluster, schedule: Policy | Plan, engine: Engine, jitter: Jitter | None
) -> Simulation:
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
    work, network, ticks_per_s = lay_out(job, cluster, schedule, state, step_s)
    log = make_log(state, work, iterations, kept)
    size = workers * (step_s.shape[2] + state.size.size) * iterations // ITERATIONS
    now, flights = make_now(job, state, work), make_flights(network, state)
    find_runner(engine, size)(state, work, now, network, flights, log)
    times_s = np.diff(log.iteration_start, axis=1)[:, iterations // 2 :] / ticks_per_s
    return Simulation(
        job=job,
        cluster=cluster,
        schedule=schedule,
        iteration_s=float(times_s.mean(axis=1).max()),
        spread_s=float(times_s.mean(axis=0).std()) if jitter else 0.0,
        compute_s=computing_s(step_s),
        communication_s=busiest_link_ticks(network, state, log) / ticks_per_s,
        log=in_seconds(log, ticks_per_s),
        pieces=_pieces(job, schedule),
    )


def _require_feasible(
    job: Job, cluster: Cluster, schedule: Policy | Plan, different: int, iterations: int
) -> None:
    """Refuse simulations that take too long: at every instant the kernel looks at all workers."""
    workers = cluster.workers
    queues = len(schedule.stages) * (workers if cluster.sync == "ps" else 1)
    steps, sent = job.columns.step_s.size, _pieces(job, schedule).operation_count
    instants = different * (steps + len(schedule.stages) * sent)
    events = workers * steps + queues * sent
    looks = iterations * (instants * (workers + queues) + events * LOOKS_PER_EVENT)
    if looks > MOST_LOOKS:
        raise InputError(
            f"{workers:,} workers that differ, {steps:,} steps of computing and {sent:,} pieces "
            f"in each of {iterations} iterations are {looks / MOST_LOOKS:,.1f} times as much as "
            "is simulated; use fewer workers or larger pieces"
        )


def _optimum(job: Job, cluster: Cluster, policy: Policy, jitter: Jitter | None) -> Simulation:
    if jitter is not None:
        raise InputError("the optimum is computed exactly, without jitter; leave that out")
    bytes_s = cluster.load_factor * job.total_bytes / cluster.link.slower
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
    """Return the kernel's loop, compiled or interpreted: the results are the same bit for bit."""
    if engine == "interpreted" or (engine == "auto" and not _worth_compiling(size)):
        return interpreted()
    from bytelane.sim.compiled import run_compiled

    return run_compiled


def _worth_compiling(size: int) -> bool:
    loaded = "bytelane.sim.compiled" in sys.modules
    return loaded or (size >= WORTH_COMPILING and find_spec("numba") is not None)


def _pieces(job: Job, schedule: Policy | Plan) -> Pieces:
    return schedule.cut(job) if isinstance(schedule, Policy) else schedule.pieces


def _state(job: Job, cluster: Cluster, schedule: Policy | Plan, workers: int) -> State:
    if isinstance(schedule, Policy):
        own_queues = cluster.sync == "ps"
        return policy_state(schedule, job, workers=workers, own_queues=own_queues)
    if cluster.sync == "ps":
        raise InputError("a plan is an order of all-reduces; this cluster has servers")
    return plan_state(schedule, workers=workers)
