"""Lay out a job on a cluster for the kernel: durations in ticks, and an empty log to fill."""

import math
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bytelane.cluster import Cluster
from bytelane.core import Plan, Policy
from bytelane.core.kernel import FUSION, Ints, State
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim import kernel
from bytelane.sim.kernel import Now, Work
from bytelane.sim.log import Log
from bytelane.sim.network.serial import Network
from bytelane.sim.network.serial_layout import link_times, make_network

Floats = npt.NDArray[np.float64]

# With jitter no two iterations are alike.
ITERATIONS_WITH_JITTER = 64

# No moment may lie further in the future, in ticks.
LAST_TICK = 2.0**62
# As many decimal digits as a float can tell apart: finer ticks would make equal times differ.
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
    """The kernel's log in seconds; NaN for a moment that did not happen."""

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
        """Keep the details of ``count`` iterations, and leave out the last ``back`` ones."""
        starts = self.iteration_start[:, : self.iteration_start.shape[1] - back]
        end = self.step_start.shape[0] - back
        return Moments(starts, *(details[end - count : end] for details in self[1:]))


def step_durations_s(job: Job, cluster: Cluster, workers: int, jitter: Jitter | None) -> Floats:
    """Return the array iteration, worker, step -> seconds; a single iteration if all are alike."""
    durations = job.columns.step_s[None, None, :].repeat(workers, axis=1)
    if cluster.compute_factors:
        factors = cluster.compute_factors if workers > 1 else [max(cluster.compute_factors)]
        # All but the last step, outside the model: loading data does not use the accelerator.
        durations[:, :, :-1] *= np.array(factors)[:, None]
    if jitter is None:
        return durations
    rng = np.random.default_rng(jitter.seed)
    normal = rng.standard_normal((ITERATIONS_WITH_JITTER, *durations.shape[1:]))
    return durations * _exp(jitter.sigma * normal)


def _exp(exponents: Floats) -> Floats:
    """Return the same bits on every machine: numpy's exp has other ones where AVX-512 is there."""
    values = np.fromiter(map(math.exp, exponents.flat), np.float64, exponents.size)
    return values.reshape(exponents.shape)


def computing_s(step_s: Floats) -> float:
    """Return the time per iteration without communication, on the slowest worker."""
    return float(step_s.sum(axis=2).mean(axis=0).max())


class Layout(NamedTuple):
    """A job on a cluster, as the kernel's arrays."""

    work: Work
    network: Network
    ticks_per_s: float


def lay_out(
    job: Job,
    cluster: Cluster,
    schedule: Policy | Plan,
    state: State,
    step_s: Floats,
    mark: int = kernel.FIRST_FORWARD,
) -> Layout:
    """Return an iteration's steps and the network's costs, in ticks."""
    completes_from, completes = _completed_by_layer(job, cluster, schedule)
    times = link_times(cluster, schedule, state)
    ticks_per_s = _ticks_per_s(step_s, times.busy_s, times.latency_s)
    step_ticks = step_s * ticks_per_s
    work = Work(
        step_ticks=np.rint(step_ticks, out=step_ticks).astype(np.int64),
        completes_from=completes_from,
        completes=completes,
        needed_by=job.columns.needed_by,
        barrier=schedule.barrier,
        mark=mark,
    )
    return Layout(work, make_network(times, ticks_per_s), ticks_per_s)


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
    """Choose a power of ten, so that decimal numbers of seconds are whole numbers of ticks."""
    longest = max(float(step_s.max()), float(send_s.max(initial=0.0)), latency_s)
    if not longest:
        return 1.0
    if not math.isfinite(longest * ITERATIONS_WITH_JITTER * (step_s.size + 2 * send_s.size)):
        raise InputError("these times are so long that they cannot be added up")
    total = float(step_s.sum()) / step_s.shape[0] + float(send_s.sum()) + send_s.size * latency_s
    if not total:  # a latency, but no message that it delays
        return 1.0
    room = min(LAST_TICK / (ITERATIONS_WITH_JITTER * total), LONGEST_TICKS / longest)
    return float(10.0 ** min(math.floor(math.log10(room)), MOST_DIGITS))


def make_now(job: Job, state: State, work: Work) -> Now:
    """Return the state at time zero: nothing has begun."""
    workers = work.step_ticks.shape[1]
    together = state.size.size if state.counters[0, FUSION] else 1  # the same in all queues
    return Now(
        clock=np.zeros(1, dtype=np.int64),
        compute_end=np.zeros(workers, dtype=np.int64),
        counters=np.zeros((workers, kernel.UNSYNCHRONISED + 1), dtype=np.int64),
        layer_missing=np.zeros((workers, len(job.layers)), dtype=np.int64),
        message=np.zeros(together, dtype=np.int64),
    )


def make_log(state: State, work: Work, iterations: int, kept: int) -> Log:
    """Return an empty log of ``iterations``, with room for the details of the last ``kept``."""
    workers, steps = work.step_ticks.shape[1:]
    computing = _not_yet(2, kept, workers, steps)
    communicating = _not_yet(6, kept, state.size.size)
    rounds = np.zeros(state.size.size if kept else 0, dtype=np.int64)
    starts = _not_yet(workers, iterations + 1)
    return Log._make([starts, *computing, *communicating, rounds])


def _not_yet(*shape: int) -> Ints:
    moments = np.empty(shape, dtype=np.int64)
    moments.fill(-1)
    return moments


def in_seconds(log: Log, ticks_per_s: float) -> Moments:
    """Turn ticks into seconds."""
    return Moments(*(np.where(ticks < 0, np.nan, ticks / ticks_per_s) for ticks in log[:-1]))
