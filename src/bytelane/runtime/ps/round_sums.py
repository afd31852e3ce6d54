"""Sum pushes in rank order, round by round: the state of a parameter server for one layout.

Theory of operation
-------------------
An operation passes through three states in every round, and only forward::

    PUSHING ──(the last rank's push)──▶ SUMMED ──(the last rank's acknowledgement)──▶ over

Sums are made in rank order once all contributions are there, not as they arrive: ``(r0 + r1) + r2``
and so on, so the same inputs give the same bits on every run. What is over costs no memory; neither
does a round of which all is over.

Ranks differ by at most one round: a rank pushes for the next round only after it has taken every
sum of this one. Three rounds are open at most: one that a rank is behind in, the next, which others
have begun, and the one before, of which acknowledgements of the slow rank are still on their way.
Whatever does not fit is returned as :class:`Misplaced`, and nothing happens.

Of a table only touched rows are pushed; see :mod:`bytelane.runtime.ps.sparse_rows`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bytelane.runtime.ps.frames import Buffer, Row
from bytelane.runtime.ps.sparse_rows import Touched, decode_rows, encode_rows, merge

MOST_ROUNDS = 3
_BFLOAT16 = "bfloat16"
_QUIET_NAN = 0x7FC0

Array = npt.NDArray[np.generic]


class Summed(NamedTuple):
    """The sum of one operation of one round."""

    round: int
    operation: int
    payload: memoryview
    used: bytes
    signal: int


class Misplaced(NamedTuple):
    """A message that does not fit the state; few different reasons, so that they can be counted."""

    reason: str


class _Contribution(NamedTuple):
    payload: Buffer
    used: bytes
    signal: int


class _Round:
    """The operations of one round that are not over."""

    def __init__(self, operations: int, world: int) -> None:
        self.pushes: dict[int, dict[int, _Contribution]] = {}
        self.sums: dict[int, Summed] = {}
        self.pushed = np.zeros((world, operations), dtype=bool)
        self.acknowledged = np.zeros((world, operations), dtype=bool)
        self.open = operations
        """How many operations are not over."""


class RoundSums:
    """Contributions and sums of one layout on one server."""

    def __init__(self, rows: Sequence[Row], world: int) -> None:
        self._rows = rows
        self._world = world
        self._rounds: dict[int, _Round] = {}
        self._last = -1
        self.pushed_bytes = [0] * world
        """Rank -> how many bytes it has pushed: the lowest is the straggler."""

    @property
    def is_idle(self) -> bool:
        """Whether no contribution and no sum is held."""
        return not self._rounds

    def push(
        self,
        number: int,
        rank: int,
        operation: int,
        payload: Buffer,
        used: bytes,
        signal: int = 0,
    ) -> Summed | Misplaced | None:
        """Keep a contribution; return the sum if it was the last one that this was waiting for."""
        if (wrong := self._misplaced(number, rank, operation, payload, used)) is not None:
            return wrong
        if number not in self._rounds:
            self._rounds[number] = _Round(len(self._rows), self._world)
            self._last = number
        now = self._rounds[number]
        now.pushed[rank, operation] = True
        self.pushed_bytes[rank] += len(payload)
        waiting = now.pushes.setdefault(operation, {})
        waiting[rank] = _Contribution(payload, used, signal)
        if len(waiting) < self._world:
            return None
        del now.pushes[operation]
        now.sums[operation] = self._sum(number, operation, waiting)
        return now.sums[operation]

    def find(self, number: int, operation: int) -> Summed | None:
        """Return a sum that not all ranks have acknowledged."""
        now = self._rounds.get(number)
        return None if now is None else now.sums.get(operation)

    def acknowledge(self, number: int, rank: int, operation: int) -> Misplaced | None:
        """Record that a rank has taken a sum; forget the sum when all have."""
        now = self._rounds.get(number)
        if now is None or operation not in now.sums or not 0 <= rank < self._world:
            return Misplaced("a sum is acknowledged that there is not")
        if now.acknowledged[rank, operation]:
            return Misplaced("a sum is acknowledged twice")
        now.acknowledged[rank, operation] = True
        if now.acknowledged[:, operation].all():
            del now.sums[operation]
            now.open -= 1
            if now.open == 0:
                del self._rounds[number]
        return None

    def _misplaced(
        self, number: int, rank: int, operation: int, payload: Buffer, used: bytes
    ) -> Misplaced | None:
        if not (0 <= operation < len(self._rows) and 0 <= rank < self._world):
            return Misplaced("a push of an operation that there is not")
        row = self._rows[operation]
        if len(used) != row.parts or not (row.rows or len(payload) == row.bytes):
            return Misplaced("a push has another size than its operation")
        if row.rows and decode_rows(payload, row.rows, row.row_bytes) is None:
            return Misplaced("a push has rows that its table has not, or not in order")
        if number in self._rounds:
            if self._rounds[number].pushed[rank, operation]:
                return Misplaced("a push came twice")
        elif number <= self._last:
            return Misplaced("a push of a round that is over")
        elif len(self._rounds) >= MOST_ROUNDS:
            return Misplaced("a push is too many rounds ahead")
        return None

    def _sum(self, number: int, operation: int, pushes: dict[int, _Contribution]) -> Summed:
        ranks = [pushes[rank] for rank in range(self._world)]
        total = sum_of(self._rows[operation], [one.payload for one in ranks])
        used = np.bitwise_or.reduce([np.frombuffer(one.used, dtype=np.uint8) for one in ranks])
        return Summed(number, operation, total, used.tobytes(), ranks[0].signal)


def sum_of(row: Row, payloads: Sequence[Buffer]) -> memoryview:
    """Add the contributions of all ranks, which must be well-formed, in rank order."""
    if not row.rows:
        return sum_in_order(payloads, row.kind)
    found = [decode_rows(payload, row.rows, row.row_bytes) for payload in payloads]
    touched: list[Touched] = [one for one in found if one is not None]
    return encode_rows(merge(touched, row.kind, sum_in_order))


def sum_in_order(payloads: Sequence[Buffer], kind: str) -> memoryview:
    """Add arrays of one kind of element, given as bytes, from the first to the last."""
    rounded = kind == _BFLOAT16
    # Little-endian whatever the host is: that is what travels.
    element = np.dtype(np.uint16 if rounded else kind).newbyteorder("<")
    arrays = [np.frombuffer(payload, dtype=element) for payload in payloads]
    if len(arrays) == 1:
        return arrays[0].view(np.uint8).data
    with np.errstate(all="ignore"):  # an overflow is the training's business
        if rounded:
            total = arrays[0]
            for array in arrays[1:]:
                total = _add_bfloat16(total, array)
        else:
            total = np.add(arrays[0], arrays[1])
            for array in arrays[2:]:
                np.add(total, array, out=total)
    return np.ascontiguousarray(total).view(np.uint8).data


def _add_bfloat16(one: Array, other: Array) -> Array:
    """Add in float32 and round to the nearest bfloat16, ties to even, as processors do."""
    total = _widened(one) + _widened(other)
    bits = total.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    return np.where(np.isnan(total), _QUIET_NAN, nearest).astype("<u2")


def _widened(array: Array) -> npt.NDArray[np.float32]:
    return (array.astype(np.uint32) << 16).view(np.float32)
