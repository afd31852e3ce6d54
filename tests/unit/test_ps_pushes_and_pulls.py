"""A worker's transport: every message is over exactly once, whatever the servers answer when."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bytelane.core import Element, SubTask
from bytelane.errors import TrainingError, TransferFailed
from bytelane.runtime.ps.connections import Member
from bytelane.runtime.ps.frames import Got, Layout, Push, Sum, Taken, decode_table
from bytelane.runtime.ps.shards import Shards
from bytelane.runtime.ps.slices import Slices
from bytelane.runtime.ps.transport import PsTransport, Served
from bytelane.runtime.sync import Contribution

WORLD = 4  # a power of two: dividing by it is exact


class Recorded:
    """Connections that note what is sent, and let the test answer."""

    def __init__(self) -> None:
        self.member = Member("recorded", 0, WORLD)
        self.sent: list[tuple[int, Any, bytes | None, str]] = []
        self.hear: dict[type, Callable[[int, Any, memoryview], None]] = {}
        self.failure: TrainingError | None = None

    def send(self, server: int, header: Any, payload: Any = None, *, way: str = "up") -> None:
        self.sent.append((server, header, None if payload is None else bytes(payload), way))

    def listen(self, kind: type, listener: Callable[[int, Any, memoryview], None]) -> None:
        self.hear[kind] = listener

    def on_failure(self, what: str, callback: Callable[[TrainingError], None]) -> None:
        self._on_failure = callback

    def fail(self, error: TrainingError) -> None:
        self.failure = error
        self._on_failure(error)

    def name(self, server: int) -> str:
        return f"server {server}"

    def of(self, kind: type) -> list[tuple[int, Any, bytes | None, str]]:
        return [one for one in self.sent if isinstance(one[1], kind)]


def slices_of(sizes: list[int], servers: int, part: int) -> Slices:
    parts = [
        (SubTask(t, a, min(a + part, size)),)
        for t, size in enumerate(sizes)
        for a in range(0, size, part)
    ]
    shards = Shards.spread(sizes, servers)
    return Slices.of_operations(parts, sizes, shards, [Element("float32", 4)] * len(sizes))


def transport_of(slices: Slices) -> tuple[Recorded, PsTransport]:
    connections = Recorded()
    return connections, PsTransport(connections, Served(slices))  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_comes_in_any_order_each_message_is_over_once(data: st.DataObject) -> None:
    sizes = [4 * n for n in data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))]
    slices = slices_of(sizes, data.draw(st.integers(1, 2)), part=8)
    total = len(slices)
    connections, transport = transport_of(slices)
    for number in range(2):  # rounds
        transport.begin_round(0, number, signal=number)
        values = [np.full(size // 4, WORLD * (t + 1), np.float32) for t, size in enumerate(sizes)]
        transport.take([Contribution(t, value, used=t > 0) for t, value in enumerate(values)])
        over: Counter[tuple[int, ...]] = Counter()

        def done(message: tuple[int, ...], error: Exception | None, over: Any = over) -> None:
            assert error is None
            over[message] += 1

        def answer(kind: type, one: int, number: int = number) -> None:
            server, own = slices.place(one)
            if kind is Taken:
                connections.hear[Taken](server, Taken(0, number, own), memoryview(b""))
                return
            parts = slices.all[one].parts
            header = Sum(0, number, own, bytes(part.tensor > 0 for part in parts), 3)
            summed = np.full(slices.all[one].bytes // 4, 100 + one, np.float32)
            connections.hear[Sum](server, header, memoryview(summed.tobytes()))

        for one in range(total):
            transport.start((one,), done)
        pushes = connections.of(Push)[-total:]
        for server, header, payload, way in pushes:
            assert (header.round, header.signal, way) == (number, number, "up")
            (part,) = slices.all[slices.number(server, header.operation)].parts
            assert header.used == bytes([part.tensor > 0])
            assert payload == np.full(part.bytes // 4, part.tensor + 1, np.float32).tobytes()
        steps: list[tuple[str, int]] = [
            (what, one) for one in range(total) for what in ("taken", "sum", "pull", "again")
        ]
        for what, one in data.draw(st.permutations(steps)):
            if what == "taken":
                answer(Taken, one)
            elif what == "pull":
                transport.start((total + one,), done)
            else:  # a server may repeat itself, but every sum comes at least once
                answer(Sum, one)
        assert over == Counter((operation,) for operation in range(2 * total))
        for one, own in enumerate(slices.all):
            for part in own.parts:
                found = values[part.tensor][part.start // 4 : part.stop // 4]
                assert found.tolist() == [100.0 + one] * (part.bytes // 4)
        got = [(s, h.round, h.operation, w) for s, h, _, w in connections.of(Got)[-total:]]
        places = map(slices.place, range(total))
        assert sorted(got) == sorted((s, number, own, "down") for s, own in places)
        assert [transport.was_used(t) for t in range(len(sizes))] == [
            t > 0 for t in range(len(sizes))
        ]
        assert transport.signalled == 3
        for tensor in range(len(sizes)):
            transport.forget(tensor)


def test_every_server_is_told_its_own_operations() -> None:
    slices = slices_of([16, 8], servers=2, part=8)
    connections, _ = transport_of(slices)
    told = connections.of(Layout)
    assert [server for server, *_ in told] == [0, 1]
    assert {header.digest for _, header, _, _ in told} == {slices.digest}
    tables = [decode_table(payload or b"") for _, _, payload, _ in told]
    assert [[row.bytes for row in table] for table in tables] == [[8, 8], [8]]  # type: ignore[union-attr]


def test_a_sum_of_another_size_fails_by_the_name_of_its_server() -> None:
    connections, transport = transport_of(slices_of([8], servers=1, part=8))
    transport.begin_round(0, 0)
    transport.take([Contribution(0, np.zeros(2, np.float32))])
    errors: list[Exception | None] = []
    transport.start((0,), lambda message, error: errors.append(error))
    connections.hear[Sum](0, Sum(0, 0, 0, b"\1"), memoryview(b"four"))
    assert isinstance(errors[0], TransferFailed)
    assert "server 0 has sent a sum of another size" in str(errors[0])


def test_memory_that_cannot_take_a_sum_is_refused() -> None:
    _, transport = transport_of(slices_of([8], servers=1, part=8))
    transport.begin_round(0, 0)
    constant = np.zeros(2, np.float32)
    constant.flags.writeable = False
    for value in (constant, np.zeros((2, 2), np.float32)[:, 0]):
        with pytest.raises((TransferFailed, ValueError), match=r"contiguous|read-only"):
            transport.take([Contribution(0, value)])
