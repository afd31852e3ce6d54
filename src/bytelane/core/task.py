"""Sub-tasks: the pieces of tensors that are queued, sent, and can be overtaken."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from bytelane.core.kernel import Ints
from bytelane.errors import InputError
from bytelane.units import format_bytes


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
        """Return sub-tasks as rows."""
        rows = [(k, p.tensor, p.start, p.stop) for k, parts in enumerate(operations) for p in parts]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        return cls(*(np.ascontiguousarray(column) for column in columns))


def label(parts: Sequence[SubTask], names: Sequence[str], tensor_bytes: Sequence[int]) -> str:
    """Return a readable name of an operation: ``fc6``, ``fc6@8 MiB``, ``bn1 + 3 more``."""
    first = parts[0]
    name = names[first.tensor]
    if first.bytes < tensor_bytes[first.tensor]:
        name += f"@{format_bytes(first.start)}"
    return name if len(parts) == 1 else f"{name} + {len(parts) - 1} more"
