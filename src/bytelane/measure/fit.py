"""Fit a link's rate, overhead, latency and floor to the times of messages.

A message of S bytes occupies the link for ``overhead + factor * S / rate``, but is under way for
the floor at least; its end is known a latency later. Two can be under way at a time, so with
several in flight floors and latencies hide behind the next message, if that is long enough.

Where it is settled which sizes are held up by the floor and what is hidden, every time is a sum of
slope, overhead, floor and latency, each a known number of times: linear least squares.
Small messages vary most, so times count by how sure they are; else noise would bend the slope. And
no model has all that a network does: times that do not fit at all count less than their square.
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
# No network is as simple as its model: however sure a time is, it may be missed by this.
MISFIT = 0.01
ROUNDING = 1e-6


class Sample(NamedTuple):
    """How long messages of one size took."""

    size: int
    in_flight: int
    messages: int
    """How many there were in a row."""
    seconds: float
    """Per message."""
    uncertainty: float = 0.0
    """By what fraction that may be wrong: one standard error."""


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
        wire_s = overhead_s + slope * self.size
        takes_s = np.maximum(floor_s, wire_s)
        wires, takes, latencies = self.counts(wire_s, takes_s, latency_s)
        total_s: Floats = wires * wire_s + takes * takes_s + latencies * latency_s
        return total_s

    def misses(self, link_s: Floats) -> Floats:
        """Return by how many tolerances each time is missed."""
        return (self.predict_s(link_s) - self.seconds) / self.tolerance_s

    def counts(
        self, wire_s: Floats, takes_s: Floats, latency_s: float
    ) -> tuple[Floats, Floats, Floats]:
        """Return what a row consists of, one after the other, for each message of it.

        A message begins when the one before has left the link, the one two before is over, and the
        end of the one that had its place in flight is known. So a row is the longest chain of such
        steps, one, two or as many messages long as there are in flight, and then its last message.
        """
        steps = self.messages - 1
        waits = np.arange(steps.max() + 1)[:, None]  # how often it may be for a place in flight
        rest = steps - waits * self.in_flight
        in_pairs = np.where(takes_s > 2 * wire_s, rest // 2, 0)
        one_by_one = rest - 2 * in_pairs
        chain_s = one_by_one * wire_s + (in_pairs + waits) * takes_s + waits * latency_s
        # One at a time, every message waits, be the latency never so short.
        possible = (rest == 0) | ((rest > 0) & (self.in_flight > 1))
        longest = np.where(possible, chain_s, -np.inf).argmax(axis=0)
        here = longest, np.arange(self.size.size)
        wires, takes, latencies = one_by_one[here], in_pairs[here] + longest + 1, longest + 1
        return wires / self.messages, takes / self.messages, latencies / self.messages


def fit_link(samples: Sequence[Sample], wire_factor: float) -> Link:
    """Find the link that misses these times by least, squared and by what each may be missed."""
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
    """Return by what fraction the link's predictions are too long."""
    link_s = np.array([wire_factor / link.rate, link.overhead_s, link.floor_s, link.latency_s])
    table = _columns(samples)
    return tuple((table.predict_s(link_s) / table.seconds - 1).tolist())


def _columns(samples: Sequence[Sample]) -> _Table:
    return _Table(*np.array(samples, dtype=np.float64).T)


def _fit_above(smallest_free: float, table: _Table) -> Floats:
    """Fit as if the floor held up exactly the sizes below this one."""
    floored = table.size < smallest_free
    latest, tolerance_s = _guess(floored, table), table.tolerance_s
    for _ in range(15):  # until it does not change any more what is hidden
        slope, overhead_s, floor_s, latency_s = latest.tolist()
        wire_s = overhead_s + slope * table.size
        takes_s = np.where(floored, floor_s, wire_s)
        wires, takes, latencies = table.counts(wire_s, takes_s, latency_s)
        wires, floors = np.where(floored, (wires, takes), (wires + takes, 0 * takes))
        rows = np.stack([wires * table.size, wires, floors, latencies], axis=1)
        found = _least_squares(rows / tolerance_s[:, None], table.seconds / tolerance_s)
        if np.allclose(found, latest, rtol=1e-9, atol=0):
            break
        latest = found
        tolerance_s = table.tolerance_s * np.sqrt(np.maximum(1, np.abs(table.misses(found))))
    return found


def _guess(floored: npt.NDArray[np.bool_], table: _Table) -> Floats:
    """Begin with a link that has a rate, and a floor if that holds anything up."""
    slope = float((table.seconds / table.size).min())
    return np.array([slope, 0.0, float(table.seconds[floored].max(initial=0.0)), 0.0])


def _least_squares(rows: Floats, wanted: Floats) -> Floats:
    """Solve rows @ x = wanted with no x negative, by trying what may be zero."""
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
    """Add up squares, but of what is missed by more than its tolerance only twice the distance."""
    far = np.abs(by)
    return float(np.where(far <= 1, far**2, 2 * far - 1).sum())
