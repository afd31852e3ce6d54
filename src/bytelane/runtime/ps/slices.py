"""Cut what a policy sends in one go into slices: one server, one element type, one message."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import msgspec

from bytelane.core import (
    CreditWindow,
    Element,
    Operation,
    Plan,
    PlannedStage,
    Policy,
    SubTask,
)
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.runtime.ps.frames import MOST_PARTS, MOST_PAYLOAD_BYTES
from bytelane.runtime.ps.shards import CHUNK_BYTES, Shards
from bytelane.runtime.ps.sparse_rows import EXPECTED_BYTES, cut_table
from bytelane.runtime.sync import Operations

# Below the limit of a payload, because encryption adds to it; a multiple of every element's size.
MOST_BYTES = MOST_PAYLOAD_BYTES - CHUNK_BYTES
Parts = tuple[SubTask, ...]
Tables = Mapping[int, int]
"""Tensor of which only touched rows travel -> bytes of a row."""
NO_TABLES: Tables = MappingProxyType({})


class Slice(msgspec.Struct, frozen=True):
    """A worker's operation on one server: pushed in one message, pulled in one message."""

    operation: int
    """The piece of the policy that it is a slice of."""
    server: int
    parts: Parts
    kind: str
    """Of its elements: they are summed together."""
    rows: int = 0
    """How many rows of a table it covers, of which only touched ones travel; 0: dense."""

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def first_row(self) -> int:
        """Where in its table it begins."""
        return self.parts[0].start // self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Size of a row of its table."""
        return self.bytes // self.rows

    @property
    def tensors(self) -> set[int]:
        return {part.tensor for part in self.parts}


class Slices:
    """All slices, server by server; push ``k`` and pull ``len(slices) + k`` are of slice ``k``."""

    def __init__(self, slices: Sequence[Slice], tensor_bytes: Sequence[int], servers: int) -> None:
        self.all = tuple(sorted(slices, key=lambda one: one.server))
        self.tensor_bytes = tuple(tensor_bytes)
        self.servers = servers
        self.counts = [0] * servers
        """How many slices each server has."""
        for one in self.all:
            self.counts[one.server] += 1
        self.first = [sum(self.counts[:server]) for server in range(servers)]
        """Where the slices of each server begin."""

    @classmethod
    def of(
        cls,
        policy: Policy,
        job: Job,
        shards: Shards,
        elements: Sequence[Element],
        tables: Tables = NO_TABLES,
    ) -> "Slices":
        """Slice what a policy sends together; ranges of a table are slices of their own."""
        sizes = [tensor.bytes for tensor in job.tensors]
        operations = policy.cut(job).sub_tasks()
        dense = [tuple(p for p in parts if p.tensor not in tables) for parts in operations]
        slices = cls.of_operations(dense, sizes, shards, elements).all
        numbers = {p.tensor: k for k, parts in reversed([*enumerate(operations)]) for p in parts}
        ranges = [
            one
            for tensor, row_bytes in tables.items()
            for one in _of_table(
                numbers[tensor], tensor, sizes[tensor], row_bytes, shards, elements[tensor]
            )
        ]
        return cls([*slices, *ranges], sizes, shards.servers)

    @classmethod
    def of_operations(
        cls,
        operations: Sequence[Parts],
        tensor_bytes: Sequence[int],
        shards: Shards,
        elements: Sequence[Element],
        most_bytes: int = MOST_BYTES,
    ) -> "Slices":
        """Slice these operations, at borders of elements only."""
        slices = []
        for number, parts in enumerate(operations):
            together: dict[tuple[int, str], list[SubTask]] = {}
            for part in parts:
                kind, size = elements[part.tensor]
                # Neighbours share a border, and it is moved in the same way for both.
                start, stop = part.start - part.start % size, part.stop - part.stop % size
                if start < stop:
                    for server, own in shards.split(SubTask(part.tensor, start, stop)):
                        together.setdefault((server, kind), []).append(own)
            for (server, kind), own_parts in together.items():
                fitting = _no_larger_than(most_bytes, own_parts)
                slices += [Slice(number, server, few, kind) for few in fitting]
        return cls(slices, tensor_bytes, shards.servers)

    def __len__(self) -> int:
        return len(self.all)

    def of_server(self, server: int) -> tuple[Slice, ...]:
        """Return the slices of one server; there it numbers them from 0."""
        first = self.first[server]
        return self.all[first : first + self.counts[server]]

    def number(self, server: int, operation: int) -> int:
        """Return the number, over all servers, of what a server knows by its own number."""
        if not 0 <= operation < self.counts[server]:
            raise InputError(f"server {server} has no operation {operation}")
        return self.first[server] + operation

    def place(self, number: int) -> tuple[int, int]:
        """Return the server of a slice, and the server's own number of it."""
        server = self.all[number].server
        return server, number - self.first[server]

    @cached_property
    def digest(self) -> str:
        """Name the slices: ranks with the same digest push and pull the same."""
        return hashlib.sha256(msgspec.msgpack.encode((self.all, self.tensor_bytes))).hexdigest()

    def pull_places(self, policy: Policy) -> list[int]:
        """Return the place of each slice in the policy's order of pulls, 0 for the most urgent."""
        priority = policy.stages[1].priority
        urgency = [min(priority[tensor] for tensor in one.tensors) for one in self.all]
        place = {urgency: number for number, urgency in enumerate(sorted(set(urgency)))}
        return [place[own] for own in urgency]

    def operations(self, policy: Policy, names: Sequence[str]) -> Operations:
        """Return the table of an engine that pushes and pulls these slices."""
        waits_for_all = policy.after_backward or any(stage.after_all for stage in policy.stages)
        return Operations(
            [one.parts for one in self.all],
            names,
            self.tensor_bytes,
            stages=2,
            in_order=False,
            after_all=waits_for_all,
        )

    def plan(
        self, name: str, window: CreditWindow, *, barrier: bool = False, version: int = 1
    ) -> Plan:
        """List the slices as a plan. Its order has no meaning: every worker decides for itself."""
        return Plan(
            name,
            self.tensor_bytes,
            tuple(Operation(one.parts) for one in self.all),
            window,
            barrier,
            version,
            (PlannedStage("push"), PlannedStage("pull")),
        )


def _of_table(
    number: int, tensor: int, size: int, row_bytes: int, shards: Shards, element: Element
) -> Iterator[Slice]:
    for place, (start, stop) in enumerate(cut_table(size, row_bytes, MOST_BYTES)):
        server = shards.owner(tensor, place * EXPECTED_BYTES)
        rows = (stop - start) // row_bytes
        yield Slice(number, server, (SubTask(tensor, start, stop),), element.kind, rows)


def _no_larger_than(most_bytes: int, parts: Sequence[SubTask]) -> Iterator[Parts]:
    """Keep parts together that fit into one message, or give each as many as it needs."""
    if sum(part.bytes for part in parts) <= most_bytes and len(parts) <= MOST_PARTS:
        yield tuple(parts)
        return
    for part in parts:
        for start in range(part.start, part.stop, most_bytes):
            yield (SubTask(part.tensor, start, min(start + most_bytes, part.stop)),)
