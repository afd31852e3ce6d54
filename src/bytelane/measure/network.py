"""Time real all-reduces over several sizes and numbers in flight, and fit a link to them."""

import itertools
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from bytelane.cluster import Cluster, Link
from bytelane.measure.fit import Sample, fit_link, relative_errors

if TYPE_CHECKING:
    import torch.distributed as dist

SIZES = tuple(2**k for k in range(12, 23))
IN_FLIGHT = (1, 2, 4)
# Smaller messages cost what starting one costs, whatever their size. No line goes through that, and
# no scheduler sends such pieces.
FITTED_FROM = 2**16
MESSAGES = 4
LEAST_ROUNDS, MOST_ROUNDS = 3, 25


class NetworkProfile(msgspec.Struct, frozen=True):
    """What was found out about the network between some workers."""

    workers: int
    link: Link
    samples: tuple[Sample, ...]
    errors: tuple[float, ...]
    """A link fitted to every other size only, on the sizes between: predicted / measured - 1."""

    def efficiency(self, sample: Sample) -> float:
        """Return how much of the link's rate these messages got."""
        wire_s = Cluster(self.workers, self.link).wire_factor * sample.size / self.link.rate
        return wire_s / sample.seconds


def profile_network(group: "dist.ProcessGroup", budget_s: float = 20.0) -> NetworkProfile:
    """Time all-reduces for about so long; every rank of the group must call this."""
    samples = take_samples(group, SIZES, IN_FLIGHT, budget_s)
    workers = group.size()
    factor = Cluster(workers, Link(1.0)).wire_factor
    counted = [sample for sample in samples if sample.size >= FITTED_FROM]
    return NetworkProfile(
        workers=workers,
        link=fit_link(counted, factor),
        samples=tuple(samples),
        errors=held_out_errors(counted, factor),
    )


def measure_link(group: "dist.ProcessGroup") -> tuple[Link, list[Sample]]:
    """Fit a link quickly, to few sizes; every rank of the group must call this."""
    sizes = (2**16, 2**18, 2**19, 2**20, 2**21)
    samples = take_samples(group, sizes, (1, 2), budget_s=1.0)
    return fit_link(samples, Cluster(group.size(), Link(1.0)).wire_factor), samples


def held_out_errors(samples: Sequence[Sample], wire_factor: float) -> tuple[float, ...]:
    """Fit every other size, and return by how much the others are missed."""
    half = sorted({sample.size for sample in samples})[::2]
    link = fit_link([s for s in samples if s.size in half], wire_factor)
    return relative_errors(link, [s for s in samples if s.size not in half], wire_factor)


def take_samples(
    group: "dist.ProcessGroup", sizes: Sequence[int], in_flight: Sequence[int], budget_s: float
) -> list[Sample]:
    """Time every size with every number in flight, in turns, each for its share of the budget.

    A time is that of the slowest rank, so all ranks see the same times and stop together.
    """
    share_s = budget_s / len(sizes) / len(in_flight)
    times: dict[tuple[int, int], list[float]] = {}
    for done in range(MOST_ROUNDS):
        for size, count in itertools.product(sizes, in_flight):
            found = times.setdefault((size, count), [])
            if done < LEAST_ROUNDS or sum(found) + found[0] < share_s:
                found.append(_slowest(_time(group, size, count), group))
    return [
        Sample(size, count, MESSAGES, median(found) / MESSAGES)
        for (size, count), found in times.items()
    ]


def _time(group: "dist.ProcessGroup", size: int, in_flight: int) -> float:
    """Send several messages with at most so many under way."""
    import torch

    tensors = [torch.zeros(size // 4) for _ in range(MESSAGES)]
    group.barrier().wait()
    began = time.perf_counter()
    under_way: list[dist.Work] = []
    for tensor in tensors:
        if len(under_way) == in_flight:
            under_way.pop(0).wait()
        under_way.append(group.allreduce([tensor]))
    for work in under_way:
        work.wait()
    return time.perf_counter() - began


def _slowest(seconds: float, group: "dist.ProcessGroup") -> float:
    import torch
    import torch.distributed as dist

    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return float(value)
