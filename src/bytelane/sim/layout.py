"""Lay out a job on a cluster for the kernel: durations in ticks, and room for what will happen."""

import math
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bytelane.cluster import Cluster
from bytelane.core import Plan, Policy
from bytelane.core.kernel import Ints, State
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim import kernel
from bytelane.sim.kernel import Log, Now, Work

Floats = npt.NDArray[np.float64]

# With jitter no two iterations are alike.
ITERATIONS_WITH_JITTER = 64

# No moment may lie further in the future, in ticks.
LAST_TICK = 2.0**62
# As many decimal digits as a float can tell apart: finer ticks would split what was meant equal.
LONGEST_TICKS = 1e15
# The largest power of ten that is exact in floating point.
MOST_DIGITS = 22


class Jitter(msgspec.Struct, frozen=True):
    """Every step's duration times exp(sigma * normal), drawn for each worker and iteration."""

    sigma: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 2:
            raise InputError(f"a jitter of {self.sigma} makes no sense; use 0 to 2, such as 0.1")
        if self.seed < 0:
            raise InputError(f"a seed of {self.seed} is not possible; use 0 or more")


class Moments(NamedTuple):
    """The kernel's log in seconds; NaN for what did not happen."""

    iteration_start: Floats
    step_start: Floats
    step_end: Floats
    launched: Floats
    handling: Floats
    handled: Floats
    sending: Floats
    sent: Floats
    known: Floats

    def last(self, count: int, back: int = 0) -> "Moments":
        """Keep the details of so many iterations, as if the last few had not happened."""
        starts = self.iteration_start[:, : self.iteration_start.shape[1] - back]
        end = self.step_start.shape[0] - back
        return Moments(starts, *(details[end - count : end] for details in self[1:]))


def step_durations_s(job: Job, cluster: Cluster, workers: int, jitter: Jitter | None) -> Floats:
    """Return iteration, worker, step -> seconds; a single iteration if all are alike."""
    durations = job.columns.step_s[None, None, :].repeat(workers, axis=1)
    if cluster.compute_factors:
        factors = cluster.compute_factors if workers > 1 else [max(cluster.compute_factors)]
        # But loading data is not the accelerator's business.
        durations[:, :, :-1] *= np.array(factors)[:, None]
    if jitter is None:
        return durations
    rng = np.random.default_rng(jitter.seed)
    normal = rng.standard_normal((ITERATIONS_WITH_JITTER, *durations.shape[1:]))
    return durations * np.exp(jitter.sigma * normal)


def computing_s(step_s: Floats) -> float:
    """Return what an iteration takes without communication, on the slowest worker."""
    return float(step_s.sum(axis=2).mean(axis=0).max())


def lay_out(
    job: Job,
    cluster: Cluster,
    schedule: Policy | Plan,
    state: State,
    step_s: Floats,
    mark: int = kernel.FIRST_FORWARD,
) -> tuple[Work, float]:
    """Return what an iteration consists of, and how many ticks a second has."""
    completes_from, completes = _completed_by_layer(job, cluster, schedule)
    stages = schedule.stages
    copies = state.counters.shape[0] // len(stages)
    # With a parameter server every worker has links of its own: one each way, or one for both.
    ways = 0 if cluster.shared_link else 1
    link = [ways * stage.link * copies + copy for stage in stages for copy in range(copies)]
    share = [stage.share for stage in stages for _ in range(copies)]
    wire_factor = cluster.wire_factor
    overhead_s = cluster.link.overhead_s if wire_factor else 0.0
    byte_s = wire_factor / cluster.link.rate
    size = state.size[: state.lane_from[1]]  # in every lane the same
    send_s = np.concatenate([one * overhead_s + size * (one * byte_s) for one in share])
    floor_s = cluster.link.floor_s if wire_factor else 0.0
    ticks_per_s = _ticks_per_s(step_s, np.maximum(send_s, floor_s), cluster.link.latency_s)
    work = Work(
        step_ticks=_whole(step_s * ticks_per_s),
        completes_from=completes_from,
        completes=completes,
        needed_by=job.columns.needed_by,
        send_ticks=_whole(send_s * ticks_per_s),
        overhead_ticks=np.array([round(one * overhead_s * ticks_per_s) for one in share]),
        floor_ticks=np.array([round(one * floor_s * ticks_per_s) for one in share]),
        link=np.array(link),
        latency_ticks=round(cluster.link.latency_s * ticks_per_s),
        barrier=schedule.barrier,
        mark=mark,
    )
    return work, ticks_per_s


def _completed_by_layer(job: Job, cluster: Cluster, schedule: Policy | Plan) -> tuple[Ints, Ints]:
    begins, tensors = job.columns.completes_from, job.columns.completes
    if not cluster.wire_factor:  # nothing has to be sent, so no gradient ever becomes ready
        return np.zeros_like(begins), tensors
    if isinstance(schedule, Policy) and schedule.after_backward:
        at_the_end = np.full_like(begins, tensors.size)
        at_the_end[0] = 0
        return at_the_end, np.argsort(-job.columns.complete_after, kind="stable")
    return begins, tensors


def _ticks_per_s(step_s: Floats, send_s: Floats, latency_s: float) -> float:
    """Choose a power of ten: times that people write down are whole numbers of ticks."""
    longest = max(float(step_s.max()), float(send_s.max(initial=0.0)), latency_s)
    if not longest:
        return 1.0
    if not math.isfinite(longest * ITERATIONS_WITH_JITTER * (step_s.size + 2 * send_s.size)):
        raise InputError("these times are so long that they cannot be added up")
    total = float(step_s.sum()) / step_s.shape[0] + float(send_s.sum()) + send_s.size * latency_s
    if not total:  # a latency that nobody pays
        return 1.0
    room = min(LAST_TICK / (ITERATIONS_WITH_JITTER * total), LONGEST_TICKS / longest)
    return float(10.0 ** min(math.floor(math.log10(room)), MOST_DIGITS))


def _whole(ticks: Floats) -> Ints:
    return np.rint(ticks, out=ticks).astype(np.int64)


def make_now(job: Job, state: State, work: Work) -> Now:
    """Stand at time zero: nothing has begun."""
    workers, links = work.step_ticks.shape[1], max(work.link.tolist()) + 1
    flying, known_at, rounds = np.zeros((3, state.size.size), dtype=np.int64)
    return Now(
        clock=np.zeros(1, dtype=np.int64),
        compute_end=np.zeros(workers, dtype=np.int64),
        link_free=np.zeros(links, dtype=np.int64),
        handler_free=np.zeros(links, dtype=np.int64),
        over_at=np.zeros((links, kernel.AT_ONCE), dtype=np.int64),
        counters=np.zeros((workers, kernel.UNSYNCHRONISED + 1), dtype=np.int64),
        layer_missing=np.zeros((workers, len(job.layers)), dtype=np.int64),
        flying=flying,
        known_at=known_at,
        oldest=state.lane_from[:-1].copy(),
        newest=state.lane_from[:-1].copy(),
        flights=np.zeros(work.link.size, dtype=np.int64),
        rounds=rounds,
    )


def make_log(work: Work, iterations: int, kept: int) -> Log:
    """Make room for so many iterations, and for the details of the last of them."""
    workers, steps = work.step_ticks.shape[1:]
    computing = _not_yet(2, kept, workers, steps)
    communicating = _not_yet(6, kept, work.send_ticks.size)
    return Log(_not_yet(workers, iterations + 1), *computing, *communicating)


def _not_yet(*shape: int) -> Ints:
    moments = np.empty(shape, dtype=np.int64)
    moments.fill(-1)
    return moments


def in_seconds(log: Log, ticks_per_s: float) -> Moments:
    """Turn ticks into seconds."""
    return Moments(*(np.where(ticks < 0, np.nan, ticks / ticks_per_s) for ticks in log))
