"""Time all-reduces of several sizes and numbers in flight, and fit a link to them."""

import itertools
import time
from collections.abc import Sequence
from math import sqrt
from random import Random
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Protocol

import msgspec

from bytelane.cluster import Cluster, Link
from bytelane.errors import InputError
from bytelane.measure.fit import Sample, fit_link, relative_errors

if TYPE_CHECKING:
    import torch.distributed as dist


class Send(Protocol):
    """Sends messages of one size, up to ``in_flight`` at a time; returns the seconds it took."""

    def __call__(
        self, group: "dist.ProcessGroup", size: int, messages: int, in_flight: int
    ) -> float: ...


# Dense where a message begins to take longer than the floor. Every other one is enough for a fit.
SIZES = tuple(2**k for k in (12, 14, 16, 17, 18, 19, 20, 21, 22))
FEW_SIZES = tuple(2**k for k in (14, 17, 19, 20, 21))
# Gloo never has more than two on the wire: with three or four in flight the times are the same.
IN_FLIGHT = (1, 2)
# The times of small messages vary most, so there are more of them in a row.
ROW_BYTES = 2**22
# After a pause a shaped link lets a burst through, and would look faster than it is: a message that
# is not counted uses up the burst.
LEAD_BYTES = 2**18
LEAST_MESSAGES, MOST_MESSAGES = 4, 16
LEAST_ROUNDS, MOST_ROUNDS = 3, 500
# A time whose standard error is a smaller fraction of it needs no more rounds.
SURE = 0.01


class NetworkProfile(msgspec.Struct, frozen=True):
    """The measured network between some workers."""

    workers: int
    link: Link
    samples: tuple[Sample, ...]
    errors: tuple[float, ...]
    """Of a link fitted to every other size, on the sizes between: predicted / measured - 1."""

    def efficiency(self, sample: Sample) -> float:
        """Return the share of the link's rate that these messages got."""
        wire_s = Cluster.star(self.workers, self.link).wire_factor * sample.size / self.link.rate
        return wire_s / sample.seconds


def profile_network(group: "dist.ProcessGroup", budget_s: float = 20.0) -> NetworkProfile:
    """Time all-reduces for about ``budget_s``; every rank of the group must call this."""
    samples = take_samples(group, SIZES, IN_FLIGHT, budget_s, all_reduce_row)
    workers = group.size()
    factor = Cluster.star(workers, Link(1.0)).wire_factor
    return NetworkProfile(
        workers=workers,
        link=fit_link(samples, factor),
        samples=tuple(samples),
        errors=held_out_errors(samples, factor),
    )


def measure_link(
    group: "dist.ProcessGroup", send: Send | None = None, budget_s: float = 1.0
) -> tuple[Link, list[Sample]]:
    """Fit a link quickly, to few sizes; every rank of the group must call this.

    ``send`` replaces the plain all-reduces. Training must not end because a measurement is noisy:
    where no link fits, only a rate is returned, from the largest messages.
    """
    samples = take_samples(group, FEW_SIZES, IN_FLIGHT, budget_s, send or all_reduce_row)
    factor = Cluster.star(group.size(), Link(1.0)).wire_factor
    try:
        return fit_link(samples, factor), samples
    except InputError:
        return through_the_largest(samples, factor), samples


def through_the_largest(samples: Sequence[Sample], wire_factor: float) -> Link:
    """Return a link with only a rate: that of the largest messages."""
    largest = max(samples)
    return Link(wire_factor * largest.size / largest.seconds)


def held_out_errors(samples: Sequence[Sample], wire_factor: float) -> tuple[float, ...]:
    """Fit every other size, and return the relative errors on the sizes between."""
    half = sorted({sample.size for sample in samples})[::2]
    link = fit_link([s for s in samples if s.size in half], wire_factor)
    return relative_errors(link, [s for s in samples if s.size not in half], wire_factor)


def take_samples(
    group: "dist.ProcessGroup",
    sizes: Sequence[int],
    in_flight: Sequence[int],
    budget_s: float,
    send: Send,
) -> list[Sample]:
    """Time every size with every number in flight, in turns, until all are certain or time is up.

    A time is that of the slowest rank, so all ranks see the same times and stop together. The
    message before influences it, so the turns are shuffled, the same on all ranks.
    """
    times: dict[tuple[int, int], list[float]] = {
        cell: [] for cell in itertools.product(sizes, in_flight)
    }
    spent_s = 0.0
    turns = list(times.items())
    for done in range(MOST_ROUNDS):
        Random(done).shuffle(turns)
        for (size, count), found in turns:
            if done < LEAST_ROUNDS or (spent_s < budget_s and _uncertainty(found) > SURE):
                found.append(_slowest(send(group, size, messages_in_a_row(size), count), group))
                spent_s += found[-1]
    return [
        Sample(
            size,
            n,
            messages_in_a_row(size),
            fmean(_usual(found)) / messages_in_a_row(size),
            _uncertainty(found),
        )
        for (size, n), found in times.items()
    ]


def _usual(times: Sequence[float]) -> Sequence[float]:
    """Return the half in the middle.

    Small messages take one time or twice that, depending on thread scheduling: a median would jump
    between the two, and a mean would follow rare stalls.
    """
    left_out = max(1, len(times) // 4)
    return sorted(times)[left_out : len(times) - left_out]


def _uncertainty(times: Sequence[float]) -> float:
    return stdev(times) / sqrt(len(times)) / fmean(_usual(times))


def messages_in_a_row(size: int) -> int:
    """Return how many messages of this size are sent one after the other, and timed together."""
    return max(LEAST_MESSAGES, min(ROW_BYTES // size, MOST_MESSAGES))


def all_reduce_row(group: "dist.ProcessGroup", size: int, messages: int, in_flight: int) -> float:
    """Send a row of messages, at most ``in_flight`` at a time; return the seconds it took."""
    import torch

    tensors = [torch.zeros(size // 4) for _ in range(messages)]
    lead_in(group)
    began = time.perf_counter()
    under_way: list[dist.Work] = []
    for tensor in tensors:
        if len(under_way) == in_flight:
            under_way.pop(0).wait()
        under_way.append(group.allreduce([tensor]))
    for work in under_way:
        work.wait()
    return time.perf_counter() - began


def lead_in(group: "dist.ProcessGroup") -> None:
    """Synchronise all ranks, and use up the burst of a link that was idle."""
    import torch

    group.allreduce([torch.zeros(LEAD_BYTES // 4)]).wait()


def _slowest(seconds: float, group: "dist.ProcessGroup") -> float:
    import torch
    import torch.distributed as dist

    value = torch.tensor(seconds, dtype=torch.float64)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
    group.allreduce([value], options).wait()
    return float(value)
