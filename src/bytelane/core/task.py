"""Cutting tensors into the pieces that are queued, sent, and can be overtaken."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from bytelane.core.kernel import Ints
from bytelane.errors import InputError
from bytelane.units import format_bytes

# As many as the compiled simulator handles in about a second, in which nothing can interrupt it.
MOST_PIECES = 1_000_000


class SubTask(msgspec.Struct, frozen=True, order=True):
    """Bytes ``start`` to ``stop`` of a tensor."""

    tensor: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise InputError(f"bytes {self.start} to {self.stop} are not a piece of a tensor")

    @property
    def bytes(self) -> int:
        return self.stop - self.start


class Pieces(NamedTuple):
    """Many sub-tasks as columns, and which operation each travels in (rising, without gaps).

    A million sub-tasks are a million rows here, not a million objects. Partition gives a tensor
    several operations; fusion gives an operation several tensors: one table holds both.
    """

    operation: Ints
    tensor: Ints
    start: Ints
    stop: Ints

    @property
    def operation_count(self) -> int:
        return int(self.operation[-1]) + 1 if self.operation.size else 0

    @property
    def operation_bytes(self) -> Ints:
        """How much each operation carries."""
        length = self.stop - self.start
        if length.size == self.operation_count:
            return length
        return np.add.reduceat(length, np.flatnonzero(np.diff(self.operation, prepend=-1)))

    def sub_tasks(self) -> list[tuple[SubTask, ...]]:
        """Return the rows as objects, operation by operation."""
        grouped: list[list[SubTask]] = [[] for _ in range(self.operation_count)]
        for operation, tensor, start, stop in zip(*(a.tolist() for a in self), strict=True):
            grouped[operation].append(SubTask(tensor, start, stop))
        return [tuple(parts) for parts in grouped]

    @classmethod
    def of(cls, operations: Sequence[Sequence[SubTask]]) -> "Pieces":
        """Return objects as rows."""
        rows = [(k, p.tensor, p.start, p.stop) for k, parts in enumerate(operations) for p in parts]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        return cls(*(np.ascontiguousarray(column) for column in columns))


def partition(tensor_bytes: Ints | Sequence[int], part_bytes: int | None) -> Pieces:
    """Cut every tensor into parts of this size, the remainder last; None keeps them whole."""
    whole = np.asarray(tensor_bytes, dtype=np.int64)
    if part_bytes is None:
        _require_few(whole.size, "whole tensors")
        numbers = np.arange(whole.size, dtype=np.int64)
        return Pieces(numbers, numbers, np.zeros_like(whole), whole)
    if part_bytes < 1:
        raise InputError(f"a part of {part_bytes} bytes cannot hold anything; use 1 or more")
    counts = -(-whole // part_bytes)
    _require_few(sum(counts.tolist()), f"parts of {format_bytes(part_bytes)}")
    tensor = np.arange(whole.size, dtype=np.int64).repeat(counts)
    number = np.arange(tensor.size, dtype=np.int64)
    first = counts.cumsum() - counts
    start = (number - first[tensor]) * part_bytes
    return Pieces(number, tensor, start, np.minimum(start + part_bytes, whole[tensor]))


def unit_pieces(
    tensor_bytes: Ints | Sequence[int],
    order: Ints | Sequence[int],
    unit_bytes: int,
    first_bytes: int | None = None,
) -> Pieces:
    """Lay all tensors end to end in this order and cut every so many bytes: partition and fusion.

    Every unit but the last is full, whatever the sizes of the tensors. Units may begin smaller and
    grow: the next forward pass waits for the first of them, and hardly ever for the others.
    """
    first_bytes = unit_bytes if first_bytes is None else first_bytes
    if unit_bytes < 1 or first_bytes < 1:
        least = min(unit_bytes, first_bytes)
        raise InputError(f"a unit of {least} bytes cannot hold anything; use 1 or more")
    in_order = np.asarray(order, dtype=np.int64)
    ends = np.asarray(tensor_bytes, dtype=np.int64)[in_order].cumsum()
    if not ends.size:
        return Pieces(*(np.zeros(0, dtype=np.int64) for _ in Pieces._fields))
    _require_few(int(ends[-1]) // unit_bytes + ends.size, f"units of {format_bytes(unit_bytes)}")
    units = _unit_begins(int(ends[-1]), unit_bytes, first_bytes)
    cuts = np.union1d(ends, units)
    begin, end = cuts[:-1], cuts[1:]
    place = np.searchsorted(ends, begin, side="right")
    zero = np.concatenate([[0], ends])[place]
    operation = np.searchsorted(units, begin, side="right") - 1
    return Pieces(operation, in_order[place], begin - zero, end - zero)


def _require_few(pieces: int, what: str) -> None:
    if pieces > MOST_PIECES:
        raise InputError(
            f"{what} make {pieces:,} pieces of an iteration; at most {MOST_PIECES:,} are possible, "
            "so use larger ones"
        )


def _unit_begins(total: int, full: int, size: int) -> Ints:
    """Return where units begin that double, starting with this size, until they are full."""
    begin, growing = 0, []
    while size < full and begin + size < total:
        growing.append(begin)
        begin += size
        size *= 2
    return np.concatenate([np.array(growing, dtype=np.int64), np.arange(begin, total, full)])


def group_pieces(tensor_bytes: Ints | Sequence[int], groups: Sequence[int]) -> Pieces:
    """Send whole tensors with the same group number together; groups are numbered without gaps."""
    _require_few(len(groups), "whole tensors")
    number = np.asarray(groups, dtype=np.int64)
    if number.size and not np.array_equal(np.unique(number), np.arange(number.max() + 1)):
        raise InputError(f"groups must be numbered 0, 1, 2... without gaps, not {list(groups)}")
    tensor = np.argsort(number, kind="stable").astype(np.int64)
    stop = np.asarray(tensor_bytes, dtype=np.int64)[tensor]
    return Pieces(number[tensor], tensor, np.zeros_like(stop), stop)


def label(parts: Sequence[SubTask], names: Sequence[str], tensor_bytes: Sequence[int]) -> str:
    """Name an operation for people: ``fc6``, ``fc6@8 MiB``, ``bn1 + 3 more``."""
    first = parts[0]
    name = names[first.tensor]
    if first.bytes < tensor_bytes[first.tensor]:
        name += f"@{format_bytes(first.start)}"
    return name if len(parts) == 1 else f"{name} + {len(parts) - 1} more"
