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
    sending: Floats
    sent: Floats
    known: Floats


def step_durations_s(job: Job, cluster: Cluster, workers: int, jitter: Jitter | None) -> Floats:
    """Return iteration, worker, step -> seconds; a single iteration if all are alike."""
    layers, columns = len(job.layers), job.columns
    once = np.empty(3 * layers + 1)
    once[0 : 2 * layers : 2], once[1 : 2 * layers : 2] = columns.update_s, columns.forward_s
    once[2 * layers : 3 * layers], once[-1] = columns.backward_s[::-1], job.outside_s
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
    stages = schedule.stages if isinstance(schedule, Policy) else ()
    copies = state.counters.shape[0] // max(1, len(stages))
    # With a parameter server every worker has links of its own.
    link = [stage.link * copies + copy for stage in stages for copy in range(copies)]
    share = np.array([stage.share for stage in stages for _ in range(copies)] or [1.0])
    overhead_s = share * (cluster.link.overhead_s if cluster.wire_factor else 0.0)
    bytes_s = share * (cluster.wire_factor / cluster.link.rate)
    send_s = overhead_s[state.lane] + state.size * bytes_s[state.lane]
    ticks_per_s = _ticks_per_s(step_s, send_s, cluster.link.latency_s)
    work = Work(
        step_ticks=_whole(step_s * ticks_per_s),
        completes_from=completes_from,
        completes=completes,
        needed_by=job.columns.needed_by,
        send_ticks=_whole(send_s * ticks_per_s),
        overhead_ticks=_whole(overhead_s * ticks_per_s),
        link=np.array(link or [0]),
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
    return np.rint(ticks).astype(np.int64)


def make_now(job: Job, work: Work, workers: int) -> Now:
    """Stand at time zero: nothing has begun."""
    operations, lanes = work.send_ticks.size, work.link.size
    first_places = np.arange(lanes) * (operations // lanes)
    flying, known_at, rounds = np.zeros((3, operations), dtype=np.int64)
    return Now(
        clock=np.zeros(1, dtype=np.int64),
        compute_end=np.zeros(workers, dtype=np.int64),
        link_free=np.zeros(int(work.link.max()) + 1, dtype=np.int64),
        counters=np.zeros((workers, kernel.UNSYNCHRONISED + 1), dtype=np.int64),
        layer_missing=np.zeros((workers, len(job.layers)), dtype=np.int64),
        flying=flying,
        known_at=known_at,
        oldest=first_places,
        newest=first_places.copy(),
        flights=np.zeros(lanes, dtype=np.int64),
        rounds=rounds,
    )


def make_log(work: Work, iterations: int, kept: int) -> Log:
    """Make room for so many iterations, and for the details of the last of them."""
    workers, steps = work.step_ticks.shape[1:]
    computing = np.full((2, kept, workers, steps), -1)
    communicating = np.full((4, kept, work.send_ticks.size), -1)
    return Log(np.full((workers, iterations + 1), -1), *computing, *communicating)


def in_seconds(log: Log, ticks_per_s: float) -> Moments:
    """Turn ticks into seconds."""
    return Moments(*(np.where(ticks < 0, np.nan, ticks / ticks_per_s) for ticks in log))
