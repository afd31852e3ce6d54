"""Row-sparse tensors: only the touched rows of a table travel, as indices and rows.

A table is cut into *ranges* of rows, each so small that all of its rows would fit into one message.
A range is an operation like any other; its payload has another size in every round::

    int64 index, int64 index, ...   ascending, counted from the first row of the range
    row, row, ...                   in the same order

The server returns the union of all ranks' rows. A row is the sum, in rank order, of the
contributions of those ranks that have touched it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bytelane.errors import InputError
from bytelane.runtime.ps.frames import INDEX_BYTES, Buffer

EXPECTED_BYTES = 2**19
"""What a range counts for when tensors are spread over servers: how much travels is not known."""

_INDEX = np.dtype("<i8")
Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Add = Callable[[Sequence[Buffer], str], memoryview]
"""Add arrays of one kind of element, given as bytes, from the first to the last."""


class Touched(NamedTuple):
    """Some rows of a table."""

    indices: Indices
    """Ascending."""
    rows: Bytes
    """One line per index."""


class RowSparse(ABC):
    """A rank's contribution to a table; then the sums, range by range, as they arrive."""

    def __init__(self) -> None:
        self._sums: dict[int, Touched] = {}

    @abstractmethod
    def divided(self, workers: int) -> Touched:
        """Return the touched rows, each once, divided by the number of workers."""

    def divide(self, workers: int) -> None:
        """Fix what this rank contributes."""
        self._own = self.divided(workers)
        self._sums.clear()

    def bytes_of(self, first: int, rows: int) -> int:
        """Return the size of the contribution to a range."""
        own = self._between(first, rows)
        row_bytes: int = self._own.rows.shape[1]
        touched: int = own.stop - own.start
        return touched * (INDEX_BYTES + row_bytes)

    def payload(self, first: int, rows: int) -> memoryview:
        """Return the contribution to a range."""
        own = self._between(first, rows)
        return encode_rows(Touched(self._own.indices[own] - first, self._own.rows[own]))

    def put(self, first: int, summed: Touched) -> None:
        """Keep the sum of a range."""
        self._sums[first] = summed

    def summed(self) -> Touched:
        """Return the sums of all ranges, in memory of their own."""
        parts = sorted(self._sums.items())
        indices = [one.indices + first for first, one in parts]
        return Touched(np.concatenate(indices), np.concatenate([one.rows for _, one in parts]))

    def _between(self, first: int, rows: int) -> slice:
        start, stop = np.searchsorted(self._own.indices, (first, first + rows))
        return slice(int(start), int(stop))


def cut_table(size: int, row_bytes: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a table of this size into ranges of rows, of which all would fit into one message."""
    rows = most_bytes // (INDEX_BYTES + row_bytes)
    if not rows:
        raise InputError(
            f"a row of a sparse embedding has {row_bytes:,} bytes; at most "
            f"{most_bytes - INDEX_BYTES:,} can travel, so build it with sparse=False"
        )
    for start in range(0, size, rows * row_bytes):
        yield start, min(start + rows * row_bytes, size)


def expected_bytes(size: int, row_bytes: int, most_bytes: int) -> int:
    """Return what a table counts for when tensors are spread over servers."""
    return EXPECTED_BYTES * sum(1 for _ in cut_table(size, row_bytes, most_bytes))


def encode_rows(touched: Touched) -> memoryview:
    """Return the payload of a push or a sum."""
    indices = np.ascontiguousarray(touched.indices, dtype=_INDEX).view(np.uint8)
    return np.concatenate([indices, touched.rows.reshape(-1)]).data


def decode_rows(payload: Buffer, rows: int, row_bytes: int) -> Touched | None:
    """Read a payload, without a copy; None if it is not one of a range with so many rows."""
    count, rest = divmod(len(payload), INDEX_BYTES + row_bytes)
    if rest:
        return None
    everything = np.frombuffer(payload, dtype=np.uint8)
    indices = everything[: count * INDEX_BYTES].view(_INDEX)
    if count and not (indices[0] >= 0 and indices[-1] < rows and _ascend(indices)):
        return None
    return Touched(indices, everything[count * INDEX_BYTES :].reshape(count, row_bytes))


def _ascend(indices: Indices) -> bool:
    return bool((indices[1:] > indices[:-1]).all())  # a difference could overflow


def merge(ranks: Sequence[Touched], kind: str, add: Add) -> Touched:
    """Return the union of the rows; each is the sum, in rank order, of those that have it."""
    union = np.unique(np.concatenate([one.indices for one in ranks]))
    total = np.zeros((len(union), ranks[0].rows.shape[1]), dtype=np.uint8)
    is_there = np.zeros(len(union), dtype=bool)
    for indices, rows in ranks:
        places = np.searchsorted(union, indices)
        seen = is_there[places]
        total[places[~seen]] = rows[~seen]
        if again := places[seen].size:
            before = total[places[seen]]
            both = add([before.reshape(-1).data, rows[seen].reshape(-1).data], kind)
            total[places[seen]] = np.frombuffer(both, np.uint8).reshape(again, -1)
        is_there[places] = True
    return Touched(union, total)
