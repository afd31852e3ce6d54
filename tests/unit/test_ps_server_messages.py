"""A parameter server without sockets: messages in, messages out, whatever the order of arrival."""

import random
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bytelane import __version__
from bytelane.runtime.ps.drops import Drops
from bytelane.runtime.ps.frames import (
    MOST_PAYLOAD_BYTES,
    PROTOCOL,
    Beat,
    Buffer,
    Got,
    Header,
    Heard,
    Join,
    Joined,
    Layout,
    Leave,
    Message,
    Push,
    Refused,
    Row,
    Say,
    Sum,
    Taken,
    decode,
    decode_heard,
    encode,
    encode_table,
    identity,
)
from bytelane.runtime.ps.members import SILENCE_S, Side
from bytelane.runtime.ps.server import Server

ROWS = [Row("int64", 8, 1), Row("int64", 16, 0, parts=2)]
TABLE = encode_table(ROWS)


class Bench:
    """A server, and its answers as (rank, side, header, payload)."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.drops = Drops(self.said.append)
        self.server = Server(self.drops)
        self.now = 0.0

    def send(
        self, rank: int, side: Side, header: Header, payload: Buffer | None = None, session: int = 0
    ) -> list[tuple[int, Side, Header, bytes]]:
        name = identity(rank, session.to_bytes(8, "big"))
        answers = []
        for out in self.server.receive(side, name, encode(header, payload), self.now):
            message = decode(out.frames)
            assert isinstance(message, Message)
            answers.append((out.to[2], out.side, message.header, bytes(message.payload)))
        return answers

    def join(self, rank: int, world: int) -> None:
        for side in ("up", "down"):
            answers = self.send(rank, side, asked(rank, world))  # type: ignore[arg-type]
            assert answers == [(rank, side, Joined(0, 1), b"")]


def asked(rank: int, world: int, **changes: Any) -> Join:
    terms = {"protocol": PROTOCOL, "version": __version__, "job": "job"} | changes
    return Join(rank=rank, world=world, **terms)


def a_team(world: int, *, rows: bytes | None = TABLE) -> Bench:
    bench = Bench()
    for rank in range(world):
        bench.join(rank, world)
        if rows is not None:
            assert bench.send(rank, "up", Layout(1, "d"), rows) == []
    return bench


def number(value: int) -> bytes:
    return np.array([value], dtype=np.int64).tobytes()


def reason(answers: list[tuple[int, Side, Header, bytes]]) -> str:
    ((_, _, header, _),) = answers
    assert isinstance(header, Refused)
    return header.reason


def test_a_push_is_acknowledged_at_once_and_its_sum_sent_to_all_when_the_last_has_come() -> None:
    bench = a_team(2)
    push = Push(1, 0, 0, b"\0")
    assert bench.send(0, "up", push, number(1)) == [(0, "up", Taken(1, 0, 0), b"")]
    assert bench.send(1, "up", Push(1, 0, 0, b"\1", 9), number(2)) == [
        (1, "up", Taken(1, 0, 0), b""),
        (0, "down", Sum(1, 0, 0, b"\1", 0), number(3)),
        (1, "down", Sum(1, 0, 0, b"\1", 0), number(3)),
    ]
    assert not bench.drops.counts


def test_the_rounds_of_another_layout_may_begin_before_the_last_acknowledgement() -> None:
    bench = a_team(1, rows=encode_table(ROWS[:1]))
    bench.send(0, "up", Push(1, 0, 0, b"\1"), number(1))
    assert bench.send(0, "up", Layout(2, "e"), TABLE) == []
    assert len(bench.send(0, "up", Push(2, 1, 0, b"\1"), number(2))) == 2
    assert bench.send(0, "down", Got(1, 0, 0)) == []
    assert bench.send(0, "down", Got(2, 1, 0)) == []
    assert not bench.drops.counts
    bench.send(0, "down", Got(1, 0, 0))  # that layout is forgotten
    assert bench.drops.counts.total() == 1


def test_ranks_with_different_layouts_are_told() -> None:
    for other, table in [(Layout(1, "e"), TABLE), (Layout(1, "d"), encode_table(ROWS[:1]))]:
        bench = a_team(2, rows=None)
        bench.send(0, "up", Layout(1, "d"), TABLE)
        assert "rank 1 has another layout than" in reason(bench.send(1, "up", other, table))


def test_a_layout_that_cannot_be_used_is_refused() -> None:
    bench = a_team(1)
    assert "goes back to layout 1" in reason(bench.send(0, "up", Layout(1, "d"), TABLE))
    assert "cannot be read" in reason(bench.send(0, "up", Layout(2, "d"), b"noise"))


def test_a_layout_that_would_take_too_much_memory_is_refused() -> None:
    bench = Bench()
    bench.join(0, 2**15)
    table = encode_table([Row("int8", 1, 0)] * 33)
    assert "33 operations for 32,768 ranks" in reason(bench.send(0, "up", Layout(1, "d"), table))


def test_a_rank_pushes_only_for_a_layout_that_it_has_announced_itself() -> None:
    bench = a_team(2)
    bench.send(0, "up", Layout(2, "d"), TABLE)
    assert bench.send(1, "up", Push(2, 0, 0, b"\1"), number(1)) == []
    assert bench.drops.counts == {"a push of a layout that its rank does not use": 1}


def test_a_rank_cannot_run_away_with_layouts() -> None:
    bench = a_team(2)
    answers = [bench.send(0, "up", Layout(k, "d"), TABLE) for k in range(2, 12)]
    assert answers[0] == []
    assert "while others use an earlier one" in reason(answers[-1])


JOINS: dict[str, tuple[Join, str]] = {
    "another job": (asked(1, 2, job="other"), "in use by another job"),
    "another protocol": (asked(1, 2, protocol=PROTOCOL + 1), "install the same version"),
    "another version": (asked(1, 2, version="0.0"), "install the same version"),
    "another world": (asked(1, 3), "rank 1 says 3 ranks, others say 2"),
    "servers in another order": (
        asked(1, 2, server=1, servers=2),
        "rank 1 has this server as number 1 of 2, others as 0 of 1; give all ranks the same",
    ),
    "a rank outside of the world": (asked(1, 1), "there is no rank 1 of 1"),
}


@pytest.mark.parametrize("case", JOINS)
def test_a_worker_that_does_not_belong_is_refused_with_a_sentence(case: str) -> None:
    bench = Bench()
    bench.join(0, 2)
    join, sentence = JOINS[case]
    assert sentence in reason(bench.send(1, "up", join))
    assert bench.send(1, "up", Beat(0)) == []
    bench.join(1, 2)  # the right one still can


def test_a_rank_joins_once() -> None:
    bench = a_team(2)
    assert "has joined already" in reason(bench.send(0, "up", asked(0, 2), session=1))
    bench.send(0, "up", Leave())
    assert "has joined already" in reason(bench.send(0, "up", asked(0, 2)))


def test_a_worker_joins_each_connection_before_it_uses_it() -> None:
    bench = Bench()
    bench.send(0, "down", asked(0, 1))
    assert bench.send(0, "up", Beat(0)) == []
    assert bench.drops.counts == {"its sender has not joined": 1}


def test_nobody_speaks_for_another_rank() -> None:
    bench = a_team(2)
    assert bench.send(0, "up", asked(1, 2)) == []
    assert bench.send(0, "up", Push(1, 0, 0, b"\1"), number(1), session=1) == []
    assert bench.drops.counts.total() == 2


@pytest.mark.parametrize(
    ("side", "header", "payload"),
    [
        ("down", Push(1, 0, 0, b"\1"), number(1)),
        ("down", Leave(), None),
        ("up", Got(1, 0, 0), None),
        ("up", Joined(0, 1), None),
        ("up", Sum(1, 0, 0, b"\1"), number(1)),
        ("up", Push(2, 0, 0, b"\1"), number(1)),
        ("up", Push(1, 0, 7, b"\1"), number(1)),
        ("up", Push(1, 0, 0, b"\1"), b"short"),
        ("up", Push(1, 0, 0, b""), number(1)),
        ("down", Got(1, 0, 0), None),
        ("down", Got(9, 0, 0), None),
    ],
)
def test_what_is_out_of_place_is_dropped_and_counted(
    side: Side, header: Header, payload: bytes | None
) -> None:
    bench = a_team(1)
    assert bench.send(0, side, header, payload) == []
    assert bench.drops.counts.total() == 1
    assert len(bench.send(0, "up", Push(1, 0, 0, b"\1"), number(5))) == 2


def test_a_second_push_of_the_same_changes_nothing() -> None:
    bench = a_team(2)
    bench.send(0, "up", Push(1, 0, 0, b"\0"), number(1))
    assert bench.send(0, "up", Push(1, 0, 0, b"\0"), number(50)) == []
    *_, (_, _, _, total) = bench.send(1, "up", Push(1, 0, 0, b"\0"), number(2))
    assert total == number(3)


def test_an_exchange_gives_everyone_what_all_have_said_in_rank_order() -> None:
    bench = a_team(2)
    assert bench.send(1, "up", Say("page", 0), b"one") == []
    assert bench.send(1, "up", Say("other", 0), b"") == []  # pages do not wait for each other
    answers = bench.send(0, "up", Say("page", 0), b"")
    assert [(rank, side, header) for rank, side, header, _ in answers] == [
        (0, "down", Heard("page", 0)),
        (1, "down", Heard("page", 0)),
    ]
    assert {tuple(decode_heard(payload)) for *_, payload in answers} == {(b"", b"one")}


def test_an_exchange_that_cannot_be_is_refused() -> None:
    bench = a_team(2)
    bench.send(0, "up", Say("page", 3), b"")
    assert "two things in one exchange" in reason(bench.send(0, "up", Say("page", 3), b""))
    bench.send(1, "up", Say("page", 3), b"")
    assert "an exchange is over" in reason(bench.send(0, "up", Say("page", 2), b""))
    large = bytes(MOST_PAYLOAD_BYTES // 2)
    assert "an exchange is too large" in reason(bench.send(0, "up", Say("page", 4), large))
    answers = [bench.send(0, "up", Say("page", k), b"") for k in range(4, 400)]
    assert "too many exchanges are open" in reason(answers[-1])


def test_a_beat_is_answered() -> None:
    assert a_team(1).send(0, "up", Beat(7)) == [(0, "up", Beat(7), b"")]


def test_it_is_over_when_all_that_joined_have_left() -> None:
    bench = a_team(2)
    bench.send(1, "up", Leave())
    assert not bench.server.is_over(0.0)
    bench.send(0, "up", Leave())
    assert bench.server.is_over(0.0)
    assert bench.send(0, "up", Beat(0)) == []


def test_it_is_over_when_all_have_fallen_silent_but_not_before_anybody_has_come() -> None:
    assert not Bench().server.is_over(1e9)
    bench = a_team(2)
    bench.now = SILENCE_S
    bench.send(0, "up", Beat(1))
    assert not bench.server.is_over(SILENCE_S + 1)
    assert bench.server.is_over(2 * SILENCE_S + 1)


def test_drops_are_reported_once_per_second_and_reason_with_how_many_there_were() -> None:
    said: list[str] = []
    drops = Drops(said.append)
    for tenth in range(25):
        drops.count("noise", tenth / 10)
    drops.count("more noise", 2.4)
    assert said == [
        "1 message dropped: noise",
        "10 messages dropped: noise",
        "10 messages dropped: noise",
        "1 message dropped: more noise",
    ]
    assert drops.counts == {"noise": 25, "more noise": 1}


class _Model:
    """A worker that trains, as the server sees it: some rounds of some layouts, then it leaves."""

    def __init__(self, rank: int, world: int, layouts: list[list[Row]], rounds: int) -> None:
        self.rank, self.world = rank, world
        self.got: list[tuple[int, int, int, bytes]] = []
        self.inbox: dict[str, deque[tuple[Header, bytes | None]]] = {"up": deque(), "down": deque()}
        self._todo = [(k, n) for k in range(len(layouts)) for n in range(rounds)]
        self._layouts, self._rounds = layouts, rounds
        self._missing = 0
        self._joined = 0
        for side in ("up", "down"):
            self.inbox[side].append((asked(rank, world), None))

    def step(self, chance: random.Random) -> None:
        """Begin the next round if nothing is missing."""
        if self._missing:
            return
        if not self._todo:
            self.inbox["up"].append((Leave(), None))
            self._missing = -1
            return
        layout, within = self._todo.pop(0)
        rows = self._layouts[layout]
        if within == 0:
            self.inbox["up"].append((Layout(layout, "d", 20), encode_table(rows)))
        for k in chance.sample(range(len(rows)), len(rows)):
            push = Push(layout, layout * self._rounds + within, k, b"\1" * rows[k].parts)
            self.inbox["up"].append((push, self.value(push)))
        self._missing = len(rows)

    def joined(self, chance: random.Random) -> None:
        """Begin to train when both connections have been joined."""
        self._joined += 1
        if self._joined == 2:
            self.step(chance)

    def value(self, push: Push) -> bytes:
        count = self._layouts[push.layout][push.operation].bytes // 8
        return np.full(count, 2**push.operation * (self.rank + 1) + push.round).tobytes()

    def take(self, header: Sum, payload: bytes, chance: random.Random) -> None:
        self.got.append((header.layout, header.round, header.operation, payload))
        self.inbox["down"].append((Got(header.layout, header.round, header.operation), None))
        self._missing -= 1
        self.step(chance)


layouts = st.lists(
    st.lists(st.builds(lambda n, p: Row("int64", 8 * n, p), st.integers(1, 3), st.integers(0, 3)),
             min_size=1, max_size=4),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=200)
@given(st.integers(1, 3), layouts, st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_order_between_connections_gives_every_worker_every_sum_once(
    world: int, tables: list[list[Row]], rounds: int, chance: random.Random
) -> None:
    """Messages of one connection keep their order; whose connection goes next is chance."""
    bench = Bench()
    team = [_Model(rank, world, tables, rounds) for rank in range(world)]
    on_their_way: dict[tuple[int, str], deque[tuple[Header, bytes]]] = {}
    while True:
        to_server = [(w.rank, side) for w in team for side in ("up", "down") if w.inbox[side]]
        to_workers = [key for key, waiting in on_their_way.items() if waiting]
        if not to_server and not to_workers:
            break
        if to_server and (not to_workers or chance.random() < 0.5):
            rank, side = chance.choice(to_server)
            header, payload = team[rank].inbox[side].popleft()
            for to, out, answer, data in bench.send(rank, side, header, payload):  # type: ignore[arg-type]
                on_their_way.setdefault((to, out), deque()).append((answer, data))
        else:
            rank, side = chance.choice(to_workers)
            answer, data = on_their_way[rank, side].popleft()
            if isinstance(answer, Sum):
                team[rank].take(answer, data, chance)
            elif isinstance(answer, Joined):
                team[rank].joined(chance)
    assert bench.drops.counts == {}
    assert bench.server.is_over(0.0)
    for worker in team:
        assert_all_sums(worker.got, team, tables, rounds)


def assert_all_sums(
    got: Iterable[tuple[int, int, int, bytes]],
    team: list[_Model],
    tables: list[list[Row]],
    rounds: int,
) -> None:
    expected = {}
    for layout, rows in enumerate(tables):
        for within in range(rounds):
            for operation in range(len(rows)):
                push = Push(layout, layout * rounds + within, operation, b"\1")
                values = [np.frombuffer(w.value(push), dtype=np.int64) for w in team]
                key = layout, push.round, operation
                expected[key] = np.sum(values, axis=0, dtype=np.int64).tobytes()
    assert sorted(key[:3] for key in got) == sorted(expected)
    assert all(expected[key] == payload for *key_, payload in got for key in [tuple(key_)])


def test_ten_thousand_messages_of_noise_raise_nothing() -> None:
    """Half are random, half are valid ones of the wrong moment, sender, size or connection."""
    chance = random.Random(2)
    bench = a_team(2)
    valid: list[tuple[Header, bytes | None]] = [
        (Push(1, 0, 0, b"\1"), number(1)),
        (Push(1, 1, 1, b"\1\0"), number(1) + number(2)),
        (Got(1, 0, 0), None),
        (Say("page", 1), b"x"),
        (Layout(2, "d", 8), TABLE),
        (Beat(1), None),
        (asked(0, 2), None),
        (asked(1, 2, job="x"), None),
    ]
    for _ in range(10_000):
        name = chance.choice([identity(k, bytes(8)) for k in range(3)] + [b"", b"w", bytes(11)])
        side = chance.choice(("up", "down"))
        if chance.random() < 0.5:
            frames: list[Any] = [chance.randbytes(chance.randint(0, 40)) for _ in range(2)]
        else:
            frames = encode(*chance.choice(valid))
            if chance.random() < 0.3:
                changed = bytearray(frames[0])
                changed[chance.randrange(len(changed))] = chance.randrange(256)
                frames[0] = bytes(changed)
        for out in bench.server.receive(side, name, frames, 0.0):  # type: ignore[arg-type]
            assert isinstance(decode(out.frames), Message)
    assert bench.drops.counts.total() > 5000
    assert len(bench.drops.counts) < 40
