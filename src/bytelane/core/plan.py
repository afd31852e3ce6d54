"""A plan: the scheduler's start actions, written down so that every rank can follow them."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from bytelane.core.knobs import CreditWindow
from bytelane.core.policy import Policy
from bytelane.core.task import Pieces, SubTask
from bytelane.errors import InputError
from bytelane.job import Job

FORMAT = 1


class Operation(msgspec.Struct, frozen=True):
    """What is sent in one go: pieces of one or of several tensors, on a lane."""

    parts: tuple[SubTask, ...]
    lane: int = 0

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class Element(NamedTuple):
    """What a tensor consists of; only equal kinds can be summed in one operation."""

    kind: str
    bytes: int


class Plan(msgspec.Struct, frozen=True, dict=True):
    """Operations in launch order. They cover every byte of every tensor exactly once."""

    policy: str
    tensor_bytes: tuple[int, ...]
    operations: tuple[Operation, ...]
    window: CreditWindow
    barrier: bool
    version: int = 1
    """Counts the plans of one run, so that two of them are never confused."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InputError(f"a plan of format {self.format}; this version reads {FORMAT}")
        _require_cover(self.tensor_bytes, [p for op in self.operations for p in op.parts])

    @classmethod
    def record(
        cls,
        policy: Policy,
        job: Job,
        pieces: Pieces,
        messages: Sequence[Sequence[int]],
        version: int = 1,
    ) -> "Plan":
        """Write down in which order the scheduler started operations, and which ones together."""
        parts = pieces.sub_tasks()
        return cls(
            policy.name,
            tuple(tensor.bytes for tensor in job.tensors),
            tuple(Operation(tuple(p for k in joined for p in parts[k])) for joined in messages),
            policy.window,
            policy.barrier,
            version,
        )

    def fit_to(self, elements: Sequence[Element]) -> "Plan":
        """Cut between elements only, and give every kind of them operations of its own."""
        operations = []
        for operation in self.operations:
            by_kind: dict[str, list[SubTask]] = {}
            for part in operation.parts:
                kind, size = elements[part.tensor]
                start, stop = part.start - part.start % size, part.stop - part.stop % size
                if start < stop:
                    by_kind.setdefault(kind, []).append(SubTask(part.tensor, start, stop))
            operations += [Operation(tuple(ps), operation.lane) for ps in by_kind.values()]
        return msgspec.structs.replace(self, operations=tuple(operations))

    @property
    def pieces(self) -> Pieces:
        return Pieces.of([operation.parts for operation in self.operations])

    def encode(self) -> bytes:
        """Return the bytes that travel between ranks."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "Plan":
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise InputError(f"these bytes are not a plan: {error}") from None

    @cached_property
    def digest(self) -> str:
        """Name the plan: equal plans, and only they, have the same digest."""
        return hashlib.sha256(self.encode()).hexdigest()


def bucket_plan(
    tensor_bytes: Sequence[int],
    bucket_bytes: int,
    version: int = 1,
    order: Sequence[int] | None = None,
) -> Plan:
    """Plan as DDP does: buckets of tensors in the order of their gradients, with a barrier.

    Before anything is known of that order, the best guess is from the last tensor to the first.
    """
    buckets: list[list[SubTask]] = []
    room = 0
    for tensor in reversed(range(len(tensor_bytes))) if order is None else order:
        if tensor_bytes[tensor] > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(SubTask(tensor, 0, tensor_bytes[tensor]))
        room -= tensor_bytes[tensor]
    operations = tuple(Operation(tuple(bucket)) for bucket in buckets)
    return Plan("buckets", tuple(tensor_bytes), operations, CreditWindow(), True, version)


def _require_cover(tensor_bytes: Sequence[int], parts: Sequence[SubTask]) -> None:
    reached = [0] * len(tensor_bytes)
    for part in sorted(parts):
        if part.tensor not in range(len(tensor_bytes)):
            raise InputError(f"the plan sends tensor {part.tensor}, which is not there")
        if part.start != reached[part.tensor]:
            raise InputError(
                f"the plan must send every byte of tensor {part.tensor} exactly once, "
                f"but after byte {reached[part.tensor]} it goes on at {part.start}"
            )
        reached[part.tensor] = part.stop
    for tensor, (got, want) in enumerate(zip(reached, tensor_bytes, strict=True)):
        if got != want:
            raise InputError(f"the plan sends {got} of the {want} bytes of tensor {tensor}")
