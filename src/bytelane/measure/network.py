"""Fit a link's rate, overhead and latency to real all-reduces.

One at a time, an all-reduce of S bytes takes ``overhead + latency + factor * S / rate``. With two
in flight the latency of one hides behind the other: each takes ``overhead + factor * S / rate``.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bytelane.cluster import Link
from bytelane.errors import InputError

if TYPE_CHECKING:
    import torch.distributed as dist

SIZES = (2**16, 2**18, 2**19, 2**20, 2**21)
REPEATS = 5


class Sample(NamedTuple):
    """How long an all-reduce took."""

    size: int
    alone_s: float
    """With nothing else in flight."""
    paired_s: float
    """Per operation, with two in flight."""


def measure_link(group: "dist.ProcessGroup") -> tuple[Link, list[Sample]]:
    """Time all-reduces of several sizes; every rank of the group must call this."""
    samples = [_sample(group, size) for size in SIZES]
    return fit_link(samples, wire_factor=2 * (group.size() - 1) / group.size()), samples


def fit_link(samples: Sequence[Sample], wire_factor: float) -> Link:
    """Fit both lines with one slope; what would be negative is noise and becomes zero."""
    sizes = np.array([s.size for s in samples], dtype=np.float64)
    alone = np.array([s.alone_s for s in samples])
    paired = np.array([s.paired_s for s in samples])
    # Columns: slope, overhead, latency. Errors grow with the size, so rows are weighed by it.
    rows = np.concatenate(
        [
            np.stack([sizes, np.ones_like(sizes), np.ones_like(sizes)], axis=1),
            np.stack([sizes, np.ones_like(sizes), np.zeros_like(sizes)], axis=1),
        ]
    )
    times = np.concatenate([alone, paired])
    weights = 1 / times
    slope, overhead, latency = np.linalg.lstsq(
        rows * weights[:, None], times * weights, rcond=None
    )[0]
    if not slope > 0:
        raise InputError("larger messages were not slower: the measurement is too noisy for a fit")
    return Link(
        rate=float(wire_factor / slope),
        overhead_s=max(0.0, float(overhead)),
        latency_s=max(0.0, float(latency)),
    )


def _sample(group: "dist.ProcessGroup", size: int) -> Sample:
    import torch

    tensors = [torch.zeros(size // 4) for _ in range(REPEATS + 1)]
    alone = []
    for tensor in tensors:
        group.barrier().wait()
        began = time.perf_counter()
        group.allreduce([tensor]).wait()
        alone.append(time.perf_counter() - began)
    group.barrier().wait()
    began = time.perf_counter()
    ahead = group.allreduce([tensors[0]])
    for tensor in tensors[1:]:
        behind = group.allreduce([tensor])
        ahead.wait()
        ahead = behind
    ahead.wait()
    return Sample(size, median(alone), (time.perf_counter() - began) / len(tensors))
