"""Ask the simulator: a job, a cluster, and a policy or a plan; back come times and a trace."""

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Literal

import msgspec
import numpy as np

from bytelane.cluster import Cluster
from bytelane.core import Pieces, Plan, Policy, label
from bytelane.core.kernel import State
from bytelane.core.scheduler import plan_state, policy_state
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim import kernel
from bytelane.sim.kernel import Log, Now, Work
from bytelane.trace import Kind, Span, Trace

Run = Callable[[State, Work, Now, Log], None]
Engine = Literal["auto", "compiled", "interpreted"]

# When a backward pass starts, all tensors have arrived and the link is idle, so every iteration
# but the first takes the same time. The mean over the last half evens out rounding only.
ITERATIONS = 4
# The trace shows two of them and what was still on the link when the first began.
KEPT = 3
# Loading compiled code costs as much as interpreting this many steps and operations (0.5 s).
WORTH_COMPILING = 8000


class Simulation(msgspec.Struct, frozen=True):
    """What the simulator found."""

    job: Job
    cluster: Cluster
    schedule: Policy | Plan
    iteration_s: float
    """Forward start to forward start, in the steady state."""
    compute_s: float
    """What an iteration takes without communication."""
    communication_s: float
    """How long the link is occupied in an iteration."""
    log: Log
    pieces: Pieces

    @property
    def bound_s(self) -> float:
        """No schedule of these operations is faster: both resources are needed in full."""
        return max(self.compute_s, self.communication_s)

    @property
    def policy(self) -> str:
        """The policy's name, also of a plan that was made by one."""
        return self.schedule.policy if isinstance(self.schedule, Plan) else self.schedule.name

    @property
    def operations(self) -> int:
        """How many are sent in an iteration."""
        return self.pieces.operation_count if self.cluster.workers > 1 else 0

    @property
    def trace(self) -> Trace:
        """The last iterations; transfers are complete for all but the last of them."""
        starts = self.log.iteration_start[-1 - KEPT :] - self.log.iteration_start[-1 - KEPT]
        spans = tuple(_compute_spans(self)) + tuple(_transfer_spans(self))
        return Trace("simulator", spans, dict(enumerate(starts.tolist())))

    def plan(self, version: int = 1) -> Plan:
        """Write down in which order the operations were launched."""
        if isinstance(self.schedule, Plan):
            return msgspec.structs.replace(self.schedule, version=version)
        order = np.argsort(self.log.sending[0], kind="stable").tolist()
        return Plan.record(self.schedule, self.job, self.pieces, order, version)


def runner(engine: Engine, size: int) -> Run:
    """Return the kernel's loop, compiled or as it stands: the results are the same bit for bit."""
    if engine == "interpreted" or (engine == "auto" and not _worth_compiling(size)):
        return kernel.run
    from bytelane.sim.compiled import load_compiled

    compiled: Run = load_compiled().run
    return compiled


def _worth_compiling(size: int) -> bool:
    loaded = "bytelane.sim.compiled" in sys.modules
    return loaded or (size >= WORTH_COMPILING and find_spec("numba") is not None)


def simulate(
    job: Job, cluster: Cluster, schedule: Policy | Plan, engine: Engine = "auto"
) -> Simulation:
    """Simulate training on one serial link until the steady state."""
    pieces = schedule.cut(job) if isinstance(schedule, Policy) else schedule.pieces
    state = policy_state(schedule, job) if isinstance(schedule, Policy) else plan_state(schedule)
    work = _work(job, cluster, state, schedule.barrier)
    _require_finite(work)
    log = _log(work)
    runner(engine, work.step_s.size + work.send_s.size)(state, work, _now(job, state), log)
    half = ITERATIONS // 2
    steady = log.iteration_start[-1] - log.iteration_start[-1 - half]
    return Simulation(
        job=job,
        cluster=cluster,
        schedule=schedule,
        iteration_s=float(steady) / half,
        compute_s=job.compute_s,
        communication_s=float(np.add.accumulate(work.send_s)[-1]) if work.send_s.size else 0.0,
        log=log,
        pieces=pieces,
    )


def _work(job: Job, cluster: Cluster, state: State, barrier: bool) -> Work:
    layers = job.layers
    step_s = [s for layer in layers for s in (layer.update_s, layer.forward_s)]
    step_s += [layer.backward_s for layer in reversed(layers)]
    # A single worker has nothing to send: no gradient ever becomes ready.
    tensors = job.tensors if cluster.workers > 1 else ()
    by_layer = sorted(range(len(tensors)), key=lambda t: tensors[t].complete_after)
    count = np.bincount([t.complete_after for t in tensors], minlength=len(layers))
    bytes_s = cluster.allreduce_wire_factor / cluster.link.rate
    overhead_s = cluster.link.overhead_s if cluster.workers > 1 else 0.0
    return Work(
        step_s=np.array([*step_s, job.outside_s], dtype=np.float64),
        completes_from=np.concatenate([[0], count.cumsum()]).astype(np.int64),
        completes=np.array(by_layer, dtype=np.int64),
        needed_by=np.array([t.needed_by for t in job.tensors], dtype=np.int64),
        send_s=(overhead_s + state.size * bytes_s).astype(np.float64),
        latency_s=float(cluster.link.latency_s),
        barrier=barrier,
    )


def _require_finite(work: Work) -> None:
    with np.errstate(over="ignore"):
        total = work.step_s.sum() + work.send_s.sum() + work.send_s.size * work.latency_s
        finite = np.isfinite(total * ITERATIONS)
    if not finite:
        raise InputError("these times are so long that they cannot be added up")


def _now(job: Job, state: State) -> Now:
    operations = state.size.size
    return Now(
        times=np.zeros(kernel.LINK_FREE + 1),
        counters=np.zeros(kernel.UNSYNCHRONISED + 1, dtype=np.int64),
        layer_missing=np.zeros(len(job.layers), dtype=np.int64),
        flying=np.zeros(operations, dtype=np.int64),
        known_at=np.zeros(operations),
    )


def _log(work: Work) -> Log:
    steps, operations = (KEPT, work.step_s.size), (KEPT, work.send_s.size)
    return Log(
        iteration_start=np.zeros(ITERATIONS + 1),
        step_start=np.zeros(steps),
        step_end=np.zeros(steps),
        launched=np.full(operations, np.nan),
        sending=np.full(operations, np.nan),
        sent=np.full(operations, np.nan),
        known=np.full(operations, np.nan),
    )


def _compute_spans(simulation: Simulation) -> Iterator[Span]:
    job, log = simulation.job, simulation.log
    zero = log.iteration_start[-1 - KEPT]
    for row in range(KEPT):
        times = zip(log.step_start[row] - zero, log.step_end[row] - zero, strict=True)
        for (kind, name), (start, end) in zip(_steps(job), times, strict=True):
            if end > start:
                yield Span(kind, name, float(start), float(end), row)


def _steps(job: Job) -> Iterator[tuple[Kind, str]]:
    for layer in job.layers:
        yield "update", layer.name
        yield "forward", layer.name
    for layer in reversed(job.layers):
        yield "backward", layer.name
    yield "outside", "the model"


def _transfer_spans(simulation: Simulation) -> Iterator[Span]:
    job, log = simulation.job, simulation.log
    names = [tensor.name for tensor in job.tensors]
    sizes = [tensor.bytes for tensor in job.tensors]
    zero = log.iteration_start[-1 - KEPT]
    for operation, parts in enumerate(simulation.pieces.sub_tasks()):
        size = sum(part.bytes for part in parts)
        for row in range(KEPT):
            start, end = log.launched[row, operation] - zero, log.known[row, operation] - zero
            if not np.isnan(start):
                text = label(parts, names, sizes)
                yield Span("transfer", text, float(start), float(end), row, size)
