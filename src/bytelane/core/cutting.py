"""Cut tensors into pieces: parts of one tensor, units across tensors, or groups of whole ones.

A policy has exactly one of the three, so that no setting can switch another one off.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from bytelane.core.kernel import Ints
from bytelane.core.task import Pieces
from bytelane.errors import InputError
from bytelane.units import format_bytes
from bytelane.values import as_whole, shown

# As many as the compiled simulator handles in about a second, in which nothing can interrupt it.
MOST_PIECES = 1_000_000


class Parts(msgspec.Struct, frozen=True, tag="parts"):
    """Cut every tensor by itself; a piece is a part of one tensor."""

    bytes: int | None = None
    """Size of all parts of a tensor but the last; None keeps tensors whole."""

    def __post_init__(self) -> None:
        if self.bytes is not None:
            _require_room("part", self.bytes)

    def cut(self, tensor_bytes: Ints, priority: Sequence[int]) -> Pieces:
        return partition(tensor_bytes, self.bytes)


class Units(msgspec.Struct, frozen=True, tag="units"):
    """Lay all tensors end to end in the order of the first stage, and cut every ``bytes`` bytes."""

    bytes: int
    first_bytes: int | None = None
    """Size of the first unit; each next one is twice as large, up to ``bytes``."""
    first_alone: bool = False
    """Start no other unit while the first is under way: they would share the link."""

    def __post_init__(self) -> None:
        _require_room("unit", self.bytes)
        if self.first_bytes is not None:
            _require_room("first unit", self.first_bytes)

    def cut(self, tensor_bytes: Ints, priority: Sequence[int]) -> Pieces:
        order = np.argsort(priority, kind="stable")
        return unit_pieces(tensor_bytes, order, self.bytes, self.first_bytes)


class Groups(msgspec.Struct, frozen=True, tag="groups"):
    """Send whole tensors together; a piece is a group of them."""

    numbers: tuple[int, ...]
    """Per tensor: the number of its group. They count from 0 without gaps."""

    def cut(self, tensor_bytes: Ints, priority: Sequence[int]) -> Pieces:
        return group_pieces(tensor_bytes, self.numbers)


Cutting: TypeAlias = Parts | Units | Groups
WHOLE = Parts()


def require_cutting(cutting: Cutting, policy: str) -> None:
    """Refuse anything but Parts, Units or Groups."""
    if not isinstance(cutting, Parts | Units | Groups):
        raise InputError(
            f"policy {policy} is cut by {shown(cutting)}; use one of Parts, Units and Groups"
        )


def _require_room(what: str, size: int) -> None:
    if as_whole(size, f"a {what}") < 1:
        raise InputError(f"a {what} of {shown(size)} bytes cannot hold anything; use 1 or more")


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
    """Lay all tensors end to end in this order and cut every ``unit_bytes``: partition and fusion.

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
