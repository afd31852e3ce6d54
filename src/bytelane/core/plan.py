"""A plan: operations in launch order, recorded from the scheduler, that every rank follows."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from bytelane.cluster import Collective
from bytelane.core.knobs import UNLIMITED, CreditWindow
from bytelane.core.policy import Policy
from bytelane.core.task import Pieces, SubTask, label
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.values import as_whole, require_whole, shown

FORMAT = 4
# A lane costs every host a connection to every other, and threads.
MOST_LANES = 16
MOST_CONNECTIONS = 64

TrafficClass = Literal["high", "normal", "low"]


class Operation(msgspec.Struct, frozen=True):
    """What is sent in one go: pieces of one or of several tensors, on a lane."""

    parts: tuple[SubTask, ...]
    lane: int = 0
    """Index into the plan's lanes."""
    alone: bool = False
    """No operation starts while this one is under way: it is urgent, and they would share the link.
    """

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class Lane(msgspec.Struct, frozen=True):
    """Connections between all ranks, with a traffic class and a window of their own."""

    connections: int = 1
    """How many, from each rank to each of its peers."""
    traffic_class: TrafficClass = "normal"
    """Switches and hosts with strict priorities send the higher class first."""
    window: CreditWindow = UNLIMITED
    """Bytes that may be in flight on this lane; the plan's window counts all lanes together."""

    def __post_init__(self) -> None:
        require_whole(self.connections, "connections", 1, MOST_CONNECTIONS)


class PlannedStage(msgspec.Struct, frozen=True):
    """A collective that every operation passes, in a fixed launch order."""

    collective: Collective
    order: tuple[int, ...] | None = None
    """Operation numbers in launch order; None: as the plan lists them."""
    after_all: bool = False
    """Begin when all operations have passed the stage before, not each as soon as it has."""


ALL_REDUCE = (PlannedStage("all-reduce"),)


class LocalDecisions(msgspec.Struct, frozen=True):
    """What a rank needs to decide by itself, where ranks need not launch in the same order."""

    policy: Policy
    job: Job


def in_halves(gather_order: Sequence[int]) -> tuple[PlannedStage, ...]:
    """Return the stages that reduce-scatter all operations, then gather them in this order."""
    gather = PlannedStage("all-gather", tuple(gather_order), after_all=True)
    return PlannedStage("reduce-scatter"), gather


class Element(NamedTuple):
    """The element type of a tensor; one operation sums elements of one kind only."""

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
    stages: tuple[PlannedStage, ...] = ALL_REDUCE
    lanes: tuple[Lane, ...] = (Lane(),)
    local: LocalDecisions | None = None
    """If given, every rank decides by this, and the order of the operations has no meaning."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InputError(f"a plan of format {self.format}; this version reads {FORMAT}")
        _require_cover(self.tensor_bytes, [p for op in self.operations for p in op.parts])
        _require_stages(self.stages, len(self.operations))
        if not 1 <= len(self.lanes) <= MOST_LANES:
            raise InputError(f"{len(self.lanes)} lanes are not possible; use 1 to {MOST_LANES}")
        for operation in self.operations:
            if operation.lane not in range(len(self.lanes)):
                raise InputError(
                    f"the plan sends on lane {operation.lane}, but has {len(self.lanes)}"
                )

    @classmethod
    def record(
        cls,
        policy: Policy,
        job: Job,
        pieces: Pieces,
        messages: Sequence[Sequence[int]],
        version: int = 1,
        later_orders: Sequence[Sequence[int]] = (),
    ) -> "Plan":
        """Write down in which order the scheduler started operations, and which ones together.

        ``later_orders``: the order of starts in each stage after the first.
        """
        require_plannable(policy)
        parts = pieces.sub_tasks()

        def operation(joined: Sequence[int]) -> Operation:
            alone = policy.first_unit_alone and 0 in joined
            return Operation(tuple(p for piece in joined for p in parts[piece]), alone=alone)

        place = {piece: number for number, joined in enumerate(messages) for piece in joined}
        first, *later = policy.stages
        stages = [PlannedStage(first.collective)]
        for stage, order in zip(later, later_orders, strict=True):
            launched = tuple(place[piece] for piece in order)
            stages.append(PlannedStage(stage.collective, launched, stage.after_all))
        return cls(
            policy.name,
            tuple(tensor.bytes for tensor in job.tensors),
            tuple(map(operation, messages)),
            policy.window,
            policy.barrier,
            version,
            tuple(stages),
        )

    @classmethod
    def deciding_locally(cls, policy: Policy, job: Job, version: int = 1) -> "Plan":
        """Let every rank decide by the policy: pushes to servers and pulls need no common order."""
        if policy.preemptive or [s.collective for s in policy.stages] != ["push", "pull"]:
            raise InputError(f"policy {policy.name} can be simulated, but not yet with servers")
        stages = tuple(PlannedStage(s.collective, after_all=s.after_all) for s in policy.stages)
        return cls(
            policy.name,
            tuple(tensor.bytes for tensor in job.tensors),
            tuple(Operation(parts) for parts in policy.cut(job).sub_tasks()),
            policy.window,
            policy.barrier,
            version,
            stages,
            local=LocalDecisions(policy, job),
        )

    def fit_to(self, elements: Sequence[Element]) -> "Plan":
        """Cut at element boundaries only, and give each kind of element operations of its own."""

        def by_kind(operation: Operation) -> list[tuple[SubTask, ...]]:
            kinds: dict[str, list[SubTask]] = {}
            for part in operation.parts:
                kind, size = elements[part.tensor]
                start, stop = part.start - part.start % size, part.stop - part.stop % size
                if start < stop:
                    kinds.setdefault(kind, []).append(SubTask(part.tensor, start, stop))
            return [tuple(own) for own in kinds.values()]

        return self._split(by_kind)

    def cut(self, most_bytes: int) -> "Plan":
        """Cut operations larger than this into several, one after the other."""

        def small(operation: Operation) -> list[tuple[SubTask, ...]]:
            if operation.bytes <= most_bytes:
                return [operation.parts]
            return [
                (SubTask(part.tensor, start, min(start + most_bytes, part.stop)),)
                for part in operation.parts
                for start in range(part.start, part.stop, most_bytes)
            ]

        return self._split(small)

    def _split(self, parts_of: Callable[[Operation], list[tuple[SubTask, ...]]]) -> "Plan":
        """Replace each operation by one per item of ``parts_of(operation)``, in every stage."""
        operations: list[Operation] = []
        became = []
        for operation in self.operations:
            instead = [replace(operation, parts=parts) for parts in parts_of(operation)]
            became.append(range(len(operations), len(operations) + len(instead)))
            operations += instead
        stages = (
            stage
            if stage.order is None
            else replace(stage, order=tuple(new for old in stage.order for new in became[old]))
            for stage in self.stages
        )
        return replace(self, operations=tuple(operations), stages=tuple(stages))

    def on_lanes(self, count: int) -> "Plan":
        """Send the operations round-robin on ``count`` equal lanes, or one lane per operation."""
        require_lanes(count)
        operations = tuple(replace(o, lane=k % count) for k, o in enumerate(self.operations))
        lanes = (Lane(),) * max(1, min(count, len(operations)))
        return replace(self, operations=operations, lanes=lanes)

    @property
    def pieces(self) -> Pieces:
        return Pieces.of([operation.parts for operation in self.operations])

    def describe(self, number: int, names: Sequence[str]) -> str:
        """Return a readable name of the operation that the scheduler starts under this number."""
        stage, operation = divmod(number, len(self.operations))
        text = label(self.operations[operation].parts, names, self.tensor_bytes)
        return text if len(self.stages) == 1 else f"{self.stages[stage].collective} {text}"

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
    """Refuse policies that only the simulator can run, for their stages or an ideal link."""
    collectives = tuple(stage.collective for stage in policy.stages)
    in_one = collectives == ("all-reduce",)
    in_halves = (
        collectives == ("reduce-scatter", "all-gather")
        and policy.stages[1].after_all
        and policy.stages[1].window == policy.window
        and policy.fusion_bytes is None  # tensors sent together must be so in both stages
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


def _require_stages(stages: Sequence[PlannedStage], operations: int) -> None:
    if not stages or stages[0].order is not None or stages[0].after_all:
        raise InputError("a plan begins with a stage that launches operations as they are listed")
    for stage in stages[1:]:
        if stage.order is not None and sorted(stage.order) != [*range(operations)]:
            raise InputError(
                f"{stage.collective} must launch each of the plan's {operations} operations "
                f"exactly once, not {list(stage.order)}"
            )


def _require_cover(tensor_bytes: Sequence[int], parts: Sequence[SubTask]) -> None:
    reached = [0] * len(tensor_bytes)
    for part in sorted(parts):
        if part.tensor not in range(len(tensor_bytes)):
            raise InputError(
                f"the plan sends tensor {part.tensor}, but there are {len(tensor_bytes)}"
            )
        if part.start != reached[part.tensor]:
            raise InputError(
                f"the plan must send every byte of tensor {part.tensor} exactly once, "
                f"but after byte {reached[part.tensor]} it goes on at {part.start}"
            )
        reached[part.tensor] = part.stop
    for tensor, (got, want) in enumerate(zip(reached, tensor_bytes, strict=True)):
        if got != want:
            raise InputError(f"the plan sends {got} of the {want} bytes of tensor {tensor}")
