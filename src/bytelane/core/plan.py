"""A plan: the scheduler's start actions, written down so that every rank can follow them."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from bytelane.core.knobs import CreditWindow
from bytelane.core.policy import Policy, Stage
from bytelane.core.task import Pieces, SubTask, label
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.values import as_whole, shown

FORMAT = 3
# A lane costs every host a connection to every other, and threads.
MOST_LANES = 16


class Operation(msgspec.Struct, frozen=True):
    """What is sent in one go: pieces of one or of several tensors, on a lane."""

    parts: tuple[SubTask, ...]
    lane: int = 0
    alone: bool = False
    """Nothing is started beside it: it is urgent, and would have to share the link."""

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
    gather_order: tuple[int, ...] = ()
    """In two halves: all are reduce-scattered, and then gathered in this order. Empty: in one."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InputError(f"a plan of format {self.format}; this version reads {FORMAT}")
        _require_cover(self.tensor_bytes, [p for op in self.operations for p in op.parts])
        if self.gather_order and sorted(self.gather_order) != [*range(len(self.operations))]:
            raise InputError(
                f"the plan must gather each of its {len(self.operations)} operations exactly once, "
                f"not {list(self.gather_order)}"
            )

    @classmethod
    def record(
        cls,
        policy: Policy,
        job: Job,
        pieces: Pieces,
        messages: Sequence[Sequence[int]],
        version: int = 1,
        gathered: Sequence[int] = (),
    ) -> "Plan":
        """Write down in which order the scheduler started operations, and which ones together.

        ``gathered``: the order in which it started their second halves, where they have some.
        """
        require_plannable(policy)
        parts = pieces.sub_tasks()

        def operation(joined: Sequence[int]) -> Operation:
            alone = policy.first_unit_alone and 0 in joined
            return Operation(tuple(p for piece in joined for p in parts[piece]), alone=alone)

        place = {piece: number for number, joined in enumerate(messages) for piece in joined}
        return cls(
            policy.name,
            tuple(tensor.bytes for tensor in job.tensors),
            tuple(map(operation, messages)),
            policy.window,
            policy.barrier,
            version,
            tuple(place[piece] for piece in gathered),
        )

    def fit_to(self, elements: Sequence[Element]) -> "Plan":
        """Cut between elements only, and give every kind of them operations of its own."""
        operations: list[Operation] = []
        became = []
        for operation in self.operations:
            by_kind: dict[str, list[SubTask]] = {}
            for part in operation.parts:
                kind, size = elements[part.tensor]
                start, stop = part.start - part.start % size, part.stop - part.stop % size
                if start < stop:
                    by_kind.setdefault(kind, []).append(SubTask(part.tensor, start, stop))
            became.append(range(len(operations), len(operations) + len(by_kind)))
            operations += [replace(operation, parts=tuple(own)) for own in by_kind.values()]
        gathered = tuple(number for old in self.gather_order for number in became[old])
        return replace(self, operations=tuple(operations), gather_order=gathered)

    def cut(self, most_bytes: int) -> "Plan":
        """Cut what is larger than this into several operations, one after the other."""
        operations = []
        for operation in self.operations:
            if operation.bytes <= most_bytes:
                operations.append(operation)
                continue
            for part in operation.parts:
                for start in range(part.start, part.stop, most_bytes):
                    piece = SubTask(part.tensor, start, min(start + most_bytes, part.stop))
                    operations.append(replace(operation, parts=(piece,)))
        return replace(self, operations=tuple(operations))

    def on_lanes(self, count: int) -> "Plan":
        """Send the operations by turns on so many lanes, each of which has connections its own."""
        require_lanes(count)
        operations = (replace(o, lane=k % count) for k, o in enumerate(self.operations))
        return replace(self, operations=tuple(operations))

    @property
    def lanes(self) -> int:
        """How many lanes it needs."""
        return max((operation.lane for operation in self.operations), default=0) + 1

    @property
    def pieces(self) -> Pieces:
        return Pieces.of([operation.parts for operation in self.operations])

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What every operation goes through, without priorities: the plan has an order."""
        if not self.gather_order:
            return (Stage("all-reduce", (), self.window),)
        return (
            Stage("reduce-scatter", (), self.window, share=0.5),
            Stage("all-gather", (), self.window, share=0.5, after_all=True),
        )

    def describe(self, number: int, names: Sequence[str]) -> str:
        """Name what the scheduler starts under this number, for people."""
        stage, operation = divmod(number, len(self.operations))
        text = label(self.operations[operation].parts, names, self.tensor_bytes)
        return f"{self.stages[stage].name} {text}" if self.gather_order else text

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


def require_lanes(count: int) -> None:
    """Refuse a number of lanes that no plan can have."""
    if not 1 <= as_whole(count, "lanes") <= MOST_LANES:
        raise InputError(f"{shown(count)} lanes are not possible; use 1 to {MOST_LANES}")


def require_plannable(policy: Policy) -> None:
    """Refuse what only a simulator can do: stages other than ours, and ideal links."""
    in_one = len(policy.stages) == 1
    in_halves = (
        [stage.share for stage in policy.stages] == [0.5, 0.5]
        and policy.stages[1].after_all
        and policy.stages[1].window == policy.window
        and policy.fusion_bytes is None  # what travels together must do so both times
    )
    if policy.after_backward or policy.preemptive or not (in_one or in_halves):
        raise InputError(f"policy {policy.name} can be simulated, but not yet carried out for real")


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
