"""Ask the simulator: a job, a cluster, and a policy or a plan; back come times and a trace."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

import msgspec
import numpy as np

from bytelane.cluster import Cluster
from bytelane.core import Pieces, Plan, Policy
from bytelane.core.kernel import State
from bytelane.core.table import plan_state, policy_state
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim import kernel
from bytelane.sim.fluid import optimal_iteration_s
from bytelane.sim.kernel import Floats, Log, Now, Work
from bytelane.sim.story import compute_spans, transfer_spans
from bytelane.trace import Trace

Run = Callable[[State, Work, Now, Log], None]
Engine = Literal["auto", "compiled", "interpreted"]

# When a backward pass starts, all tensors have arrived and the link is idle, so every iteration
# but the first takes the same time. The mean over the last half evens out rounding only.
ITERATIONS = 4
# With jitter no two iterations are alike.
ITERATIONS_WITH_JITTER = 64
# The trace shows two of them and what was still on the link when the first began.
KEPT = 3
# Loading compiled code costs as much as interpreting this many steps and operations (0.5 s).
WORTH_COMPILING = 8000


class Jitter(msgspec.Struct, frozen=True):
    """Every step's duration times exp(sigma * normal), drawn for each worker and iteration."""

    sigma: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 2:
            raise InputError(f"a jitter of {self.sigma} makes no sense; use 0 to 2, such as 0.1")
        if self.seed < 0:
            raise InputError(f"a seed of {self.seed} is not possible; use 0 or more")


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
    """How long the busiest link is occupied in an iteration."""
    log: Log | None
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
        log = self._need_log()
        starts = log.iteration_start[0, -1 - KEPT :] - log.iteration_start[0, -1 - KEPT]
        if isinstance(self.schedule, Plan):
            stages = ["all-reduce"]
        else:
            stages = [stage.name for stage in self.schedule.stages]
        copies = log.iteration_start.shape[0] if self.cluster.sync == "ps" else 1
        sent = transfer_spans(self.job, self.pieces, log, stages, copies)
        spans = (*compute_spans(self.job, log), *sent)
        return Trace("simulator", spans, dict(enumerate(starts.tolist())))

    def plan(self, version: int = 1) -> Plan:
        """Write down in which order the operations were launched."""
        if isinstance(self.schedule, Plan):
            return msgspec.structs.replace(self.schedule, version=version)
        if len(self.schedule.stages) > 1:
            raise InputError(f"{self.policy} has several stages; a plan can hold one")
        begins = self._need_log().sending[0]
        messages: dict[float, list[int]] = {}
        for operation in np.argsort(begins, kind="stable").tolist():
            # Operations that begin together on a serial link are one message.
            key = begins[operation] if self.schedule.fusion_bytes else operation
            messages.setdefault(key, []).append(operation)
        return Plan.record(self.schedule, self.job, self.pieces, list(messages.values()), version)

    def _need_log(self) -> Log:
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
    iterations = ITERATIONS if jitter is None else ITERATIONS_WITH_JITTER
    differing = jitter is not None or len(set(cluster.compute_factors)) > 1
    workers = cluster.workers if differing else 1
    state = _state(job, cluster, schedule, workers)
    step_s = _steps(job, cluster, workers, jitter)
    work = _work(job, cluster, schedule, state, step_s)
    _require_finite(work)
    log = _log(work, iterations, KEPT)
    run = _runner(engine, workers * (step_s.shape[2] + work.send_s.size) * iterations // ITERATIONS)
    run(state, work, _now(job, work, workers), log)
    times = np.diff(log.iteration_start, axis=1)[:, iterations // 2 :]
    return Simulation(
        job=job,
        cluster=cluster,
        schedule=schedule,
        iteration_s=float(times.mean(axis=1).max()),
        spread_s=float(times.mean(axis=0).std()) if jitter else 0.0,
        compute_s=float(step_s.sum(axis=2).mean(axis=0).max()),
        communication_s=_busiest_link(work, state),
        log=log,
        pieces=_pieces(job, schedule),
    )


def evaluate(job: Job, cluster: Cluster, policy: Policy, engine: Engine = "compiled") -> float:
    """Return just the iteration time in seconds, as fast as possible: for tuners and sweeps.

    The second iteration is already the steady state, and nothing else is written down.
    """
    if policy.preemptive:
        return optimal_iteration_s(job, cluster)
    workers = cluster.workers if len(set(cluster.compute_factors)) > 1 else 1
    state = _state(job, cluster, policy, workers)
    work = _work(job, cluster, policy, state, _steps(job, cluster, workers, None))
    _require_finite(work)
    log = _log(work, iterations=2, kept=0)
    _runner(engine, 0)(state, work, _now(job, work, workers), log)
    return float((log.iteration_start[:, 2] - log.iteration_start[:, 1]).max())


def _optimum(job: Job, cluster: Cluster, policy: Policy, jitter: Jitter | None) -> Simulation:
    if jitter is not None:
        raise InputError("the optimum is computed exactly, without jitter; leave that out")
    bytes_s = cluster.wire_factor * job.total_bytes / cluster.link.rate
    return Simulation(
        job=job,
        cluster=cluster,
        schedule=policy,
        iteration_s=optimal_iteration_s(job, cluster),
        spread_s=0.0,
        compute_s=float(_steps(job, cluster, 1, None).sum()),
        communication_s=bytes_s,
        log=None,
        pieces=_pieces(job, policy),
    )


def _runner(engine: Engine, size: int) -> Run:
    """Return the kernel's loop, compiled or as it stands: the results are the same bit for bit."""
    if engine == "interpreted" or (engine == "auto" and not _worth_compiling(size)):
        return kernel.run
    from bytelane.sim.compiled import load_compiled

    compiled: Run = load_compiled().run
    return compiled


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


def _steps(job: Job, cluster: Cluster, workers: int, jitter: Jitter | None) -> Floats:
    """Lay out the durations: iteration, worker, step."""
    layers, job_s = len(job.layers), job.columns
    once = np.empty(3 * layers + 1)
    once[0 : 2 * layers : 2], once[1 : 2 * layers : 2] = job_s.update_s, job_s.forward_s
    once[2 * layers : 3 * layers], once[-1] = job_s.backward_s[::-1], job.outside_s
    factors = cluster.compute_factors or (1.0,)
    scale = np.resize(np.array(factors if workers > 1 else [max(factors)]), workers)
    durations = np.multiply.outer(scale, once)[None]
    durations[:, :, -1] = job.outside_s  # loading data is not the accelerator's business
    if jitter is None:
        return durations
    normal = np.random.default_rng(jitter.seed).standard_normal(
        (ITERATIONS_WITH_JITTER, workers, once.size)
    )
    return durations * np.exp(jitter.sigma * normal)


def _work(
    job: Job, cluster: Cluster, schedule: Policy | Plan, state: State, step_s: Floats
) -> Work:
    # Where nothing has to be sent, no gradient ever becomes ready.
    complete_after = job.columns.complete_after[: None if cluster.wire_factor else 0]
    if isinstance(schedule, Policy) and schedule.after_backward:
        by_layer = np.argsort(-complete_after, kind="stable")
        complete_after = np.zeros_like(complete_after)
    else:
        by_layer = np.argsort(complete_after, kind="stable")
    count = np.bincount(complete_after, minlength=len(job.layers))
    stages = schedule.stages if isinstance(schedule, Policy) else ()
    share = np.array([stage.share for stage in stages] or [1.0])
    link = np.array([stage.link for stage in stages] or [0])
    copies = (state.lane_from.size - 1) // share.size
    overhead_s = np.repeat(share, copies) * (cluster.link.overhead_s if cluster.wire_factor else 0)
    bytes_s = np.repeat(share, copies) * (cluster.wire_factor / cluster.link.rate)
    return Work(
        step_s=step_s,
        completes_from=np.concatenate([[0], count.cumsum()]).astype(np.int64),
        completes=by_layer,
        needed_by=job.columns.needed_by,
        send_s=overhead_s[state.lane] + state.size * bytes_s[state.lane],
        overhead_s=overhead_s,
        link=(np.repeat(link, copies) * copies + np.tile(np.arange(copies), share.size)).astype(
            np.int64
        ),
        latency_s=float(cluster.link.latency_s),
        barrier=schedule.barrier,
    )


def _require_finite(work: Work) -> None:
    with np.errstate(over="ignore"):
        total = work.step_s.sum() + work.send_s.sum() + work.send_s.size * work.latency_s
        finite = np.isfinite(total * ITERATIONS_WITH_JITTER)
    if not finite:
        raise InputError("these times are so long that they cannot be added up")


def _now(job: Job, work: Work, workers: int) -> Now:
    operations, lanes = work.send_s.size, work.link.size
    return Now(
        clock=np.zeros(1),
        compute_end=np.zeros(workers),
        link_free=np.zeros(work.link.max() + 1),
        counters=np.zeros((workers, kernel.UNSYNCHRONISED + 1), dtype=np.int64),
        layer_missing=np.zeros((workers, len(job.layers)), dtype=np.int64),
        sent=np.zeros(lanes, dtype=np.int64),
        delivered=np.zeros(lanes, dtype=np.int64),
        flying=np.zeros(operations, dtype=np.int64),
        known_at=np.zeros(operations),
        rounds=np.zeros(operations, dtype=np.int64),
    )


def _log(work: Work, iterations: int, kept: int) -> Log:
    workers, steps = work.step_s.shape[1:]
    operations = (kept, work.send_s.size)
    return Log(
        iteration_start=np.full((workers, iterations + 1), -1.0),
        step_start=np.zeros((kept, workers, steps)),
        step_end=np.zeros((kept, workers, steps)),
        launched=np.full(operations, np.nan),
        sending=np.full(operations, np.nan),
        sent=np.full(operations, np.nan),
        known=np.full(operations, np.nan),
    )


def _busiest_link(work: Work, state: State) -> float:
    by_link = np.bincount(work.link[state.lane], work.send_s) if work.send_s.size else np.zeros(1)
    return float(by_link.max())
