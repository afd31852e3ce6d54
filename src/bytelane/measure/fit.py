"""Fit a link's rate, overhead, latency and floor to the times of messages.

A message of S bytes occupies the link for ``overhead + factor * S / rate``, and is handled for the
floor meanwhile; its end is known a latency later. Link and handling take one message after another,
so each of several equal messages takes the longer of both. With several in flight a latency hides
behind the next message, if that is long enough.

Once it is known which sizes the floor limits and which latencies are hidden, every time is a sum of
slope, overhead, floor and latency, each a known number of times: linear least squares. Small
messages vary most, so times are weighted by their uncertainty; else noise would bend the slope. And
no model has all effects of a network: outliers count less than their square.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bytelane.cluster import Link
from bytelane.errors import InputError

Floats = npt.NDArray[np.float64]

# Slope, overhead, floor and latency: any of them is left out where it would come out negative.
_COLUMNS = [list(some) for count in (4, 3, 2, 1) for some in combinations(range(4), count)]
# No network is as simple as its model: even a certain time may be missed by this fraction.
MISFIT = 0.01
ROUNDING = 1e-6


class Sample(NamedTuple):
    """How long messages of one size took."""

    size: int
    in_flight: int
    messages: int
    """Number of messages in a row."""
    seconds: float
    """Per message."""
    uncertainty: float = 0.0
    """Relative standard error of ``seconds``."""


class _Table(NamedTuple):
    """Samples as columns."""

    size: Floats
    in_flight: Floats
    messages: Floats
    seconds: Floats
    uncertainty: Floats

    @property
    def tolerance_s(self) -> Floats:
        return self.seconds * np.hypot(self.uncertainty, MISFIT)

    def predict_s(self, link_s: Floats) -> Floats:
        slope, overhead_s, floor_s, latency_s = link_s.tolist()
        takes_s = np.maximum(floor_s, overhead_s + slope * self.size)
        messages, latencies = self.counts(takes_s, latency_s)
        total_s: Floats = messages * takes_s + latencies * latency_s
        return total_s

    def misses(self, link_s: Floats) -> Floats:
        """Return the error of each time, in tolerances."""
        return (self.predict_s(link_s) - self.seconds) / self.tolerance_s

    def counts(self, takes_s: Floats, latency_s: float) -> tuple[Floats, Floats]:
        """Return how many messages and latencies are serial, per message sent."""
        rounds = np.ceil(self.messages / self.in_flight)
        in_last_round = self.messages - (rounds - 1) * self.in_flight
        # Either the link never rests until the last message, or each round waits for a latency.
        serial = rounds + in_last_round - 1
        waits = latency_s * (rounds - 1) >= takes_s * (self.messages - serial)
        messages = np.where(waits, serial, self.messages)
        return messages / self.messages, np.where(waits, rounds, 1) / self.messages


def fit_link(samples: Sequence[Sample], wire_factor: float) -> Link:
    """Find the link with the least squared errors, weighted by tolerance."""
    table = _columns(samples)
    best, least = np.zeros(4), np.inf
    for smallest_free in np.unique(table.size):
        found = _fit_above(smallest_free, table)
        missed = _missed(table.misses(found))
        if missed < least:
            best, least = found, missed
    slope, overhead_s, floor_s, latency_s = best.tolist()
    largest_s, smallest_s = overhead_s + slope * table.size.max(), max(overhead_s, floor_s)
    if not largest_s > (1 + ROUNDING) * smallest_s:
        raise InputError("larger messages were not slower: the measurement is too noisy for a fit")
    return Link(wire_factor / slope, overhead_s, latency_s, floor_s)


def relative_errors(link: Link, samples: Sequence[Sample], wire_factor: float) -> tuple[float, ...]:
    """Return the relative errors of the link's predictions; positive: too long."""
    link_s = np.array([wire_factor / link.rate, link.overhead_s, link.floor_s, link.latency_s])
    table = _columns(samples)
    return tuple((table.predict_s(link_s) / table.seconds - 1).tolist())


def _columns(samples: Sequence[Sample]) -> _Table:
    return _Table(*np.array(samples, dtype=np.float64).T)


def _fit_above(smallest_free: float, table: _Table) -> Floats:
    """Fit as if the floor limited exactly the sizes below this one."""
    floored = table.size < smallest_free
    taken = np.stack([np.where(floored, 0, table.size), ~floored, floored])
    latest, tolerance_s = np.array([1.0, 0.0, 0.0, 0.0]), table.tolerance_s
    for _ in range(15):  # until it does not change any more which latencies are hidden
        messages, latencies = table.counts(latest[:3] @ taken, float(latest[3]))
        rows = np.stack([*(messages * taken), latencies], axis=1)
        found = _least_squares(rows / tolerance_s[:, None], table.seconds / tolerance_s)
        if np.allclose(found, latest, rtol=1e-9, atol=0):
            break
        latest = found
        tolerance_s = table.tolerance_s * np.sqrt(np.maximum(1, np.abs(table.misses(found))))
    return found


def _least_squares(rows: Floats, wanted: Floats) -> Floats:
    """Solve rows @ x = wanted with no x negative, by trying which x are zero."""
    best, least = np.zeros(4), np.inf
    for columns in _COLUMNS:
        found = np.zeros(4)
        found[columns] = np.linalg.lstsq(rows[:, columns], wanted, rcond=None)[0]
        by = rows @ found - wanted
        missed = float(by @ by)
        if found.min() >= 0 and missed < least:
            best, least = found, missed
            if len(columns) == len(found):
                break  # nothing has to be left out
    return best


def _missed(by: Floats) -> float:
    """Return the Huber loss: squared up to one tolerance, linear beyond."""
    far = np.abs(by)
    return float(np.where(far <= 1, far**2, 2 * far - 1).sum())
