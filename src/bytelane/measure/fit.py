"""Fit a link's rate, overhead and latency to the times of messages.

A message of S bytes occupies the link for ``overhead + factor * S / rate``; its end is known a
latency later. Alone, it takes both. With several in flight a latency hides behind the next
message, if that is long enough.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bytelane.cluster import Link
from bytelane.errors import InputError

Floats = npt.NDArray[np.float64]

# Gloo starts operations in order, and never has more than two on the wire.
GLOO_AT_ONCE = 2
# Slope, overhead and latency: any of them is left out where it would come out negative.
_COLUMNS = ([0, 1, 2], [0, 1], [0, 2], [1, 2], [0], [1], [2])


class Sample(NamedTuple):
    """How long messages of one size took."""

    size: int
    in_flight: int
    messages: int
    """How many there were in a row."""
    seconds: float
    """Per message."""


def fit_link(samples: Sequence[Sample], wire_factor: float) -> Link:
    """Find the link that misses these times by least, relatively and squared."""
    times = np.array([sample.seconds for sample in samples])
    latest = np.array([1.0, 0.0, 0.0])
    for _ in range(50):  # until it does not change any more which latencies are hidden
        rows = _rows(samples, latest)
        found = _least_squares(rows / times[:, None])
        if np.allclose(found, latest, rtol=1e-12, atol=0):
            break
        latest = found
    slope, overhead_s, latency_s = (float(value) for value in found)
    if not slope > 0:
        raise InputError("larger messages were not slower: the measurement is too noisy for a fit")
    return Link(wire_factor / slope, overhead_s, latency_s)


def relative_errors(link: Link, samples: Sequence[Sample], wire_factor: float) -> tuple[float, ...]:
    """Return by what fraction the link's predictions are too long."""
    link_s = np.array([wire_factor / link.rate, link.overhead_s, link.latency_s])
    predicted = _rows(samples, link_s) @ link_s
    return tuple((predicted / [s.seconds for s in samples] - 1).tolist())


def _rows(samples: Sequence[Sample], link_s: Floats) -> Floats:
    """Return the coefficients of slope, overhead and latency in each message's time."""
    return np.array([_row(sample, link_s) for sample in samples])


def _row(sample: Sample, link_s: Floats) -> Floats:
    in_flight = min(sample.in_flight, GLOO_AT_ONCE)
    rounds = -(-sample.messages // in_flight)
    # Either the link never rests until the last message, or each round waits for a latency.
    busy = np.array([sample.messages * sample.size, sample.messages, 1])
    sent = rounds + in_flight - 1
    waiting = np.array([sent * sample.size, sent, rounds])
    longer = busy if busy @ link_s > waiting @ link_s else waiting
    return longer / sample.messages


def _least_squares(rows: Floats) -> Floats:
    """Solve rows @ x = 1 with no x negative, by trying what may be zero."""
    wanted = np.ones(len(rows))
    best, least = np.zeros(3), np.inf
    for columns in _COLUMNS:
        found = np.zeros(3)
        found[columns] = np.linalg.lstsq(rows[:, columns], wanted, rcond=None)[0]
        missed = float(np.sum((rows @ found - wanted) ** 2))
        if found.min() >= 0 and missed < least:
            best, least = found, missed
    return best
