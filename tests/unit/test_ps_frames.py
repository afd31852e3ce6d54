"""Messages of the parameter server survive the journey; anything else is refused, never raised."""

import random
import time
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.runtime.ps import frames
from bytelane.runtime.ps.frames import (
    MOST_HEADER_BYTES,
    MOST_PAYLOAD_BYTES,
    Beat,
    Got,
    Header,
    Heard,
    Join,
    Joined,
    Layout,
    Leave,
    Malformed,
    Message,
    Push,
    Refused,
    Row,
    Say,
    Sum,
    Taken,
    decode,
    decode_heard,
    decode_table,
    encode,
    encode_heard,
    encode_table,
    identity,
    rank_of,
)

numbers = st.integers(0, 2**62)
operations = st.integers(0, frames.MOST_OPERATIONS - 1)
ranks = st.integers(0, 2**16 - 1)
counts = st.integers(1, 2**16)
names = st.text(max_size=20)
used = st.binary(max_size=20)
signals = st.integers(0, 2**31 - 1)
places = (numbers, numbers, operations)
rows = st.lists(
    st.builds(
        lambda kind, elements, place, parts: Row(
            kind, elements * frames.ELEMENT_BYTES[kind], place, parts
        ),
        st.sampled_from(list(frames.ELEMENT_BYTES)),
        st.integers(1, 1000),
        operations,
        st.integers(1, frames.MOST_PARTS),
    ),
    max_size=20,
)
without_payload = st.one_of(
    st.builds(Join, numbers, names, names, ranks, counts, ranks, counts),
    st.builds(Got, *places),
    st.builds(Beat, numbers),
    st.builds(Leave),
    st.builds(Joined, ranks, counts),
    st.builds(Refused, names),
    st.builds(Taken, *places),
)
with_payload = st.one_of(
    st.builds(Layout, numbers, names, st.one_of(st.none(), st.integers(1, 2**62)), st.booleans()),
    st.builds(Push, *places, used, signals),
    st.builds(Say, names, numbers),
    st.builds(Sum, *places, used, signals),
    st.builds(Heard, names, numbers),
)


@given(without_payload)
def test_a_header_survives_the_journey(header: Header) -> None:
    assert decode(encode(header)) == Message(header, memoryview(b""))


@given(with_payload, st.binary(max_size=50))
def test_a_header_and_its_payload_survive_the_journey(header: Header, payload: bytes) -> None:
    assert decode(encode(header, payload)) == Message(header, memoryview(payload))


def test_every_message_was_tried() -> None:
    tried = {Join, Got, Beat, Leave, Joined, Refused, Taken, Layout, Push, Say, Sum, Heard}
    assert tried == set(typing.get_args(Header))


@given(rows)
def test_a_table_survives_the_journey(table: list[Row]) -> None:
    assert decode_table(encode_table(table)) == tuple(table)


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_what_was_said_survives_the_journey(said: list[bytes]) -> None:
    assert decode_heard(encode_heard(said)) == said


@given(st.integers(0, 2**16 - 1), st.binary(min_size=8, max_size=8))
def test_an_identity_names_its_rank(rank: int, session: bytes) -> None:
    assert rank_of(identity(rank, session)) == rank


@given(st.binary(max_size=20).filter(lambda name: len(name) != 11 or name[:1] != b"w"))
def test_another_identity_names_none(name: bytes) -> None:
    assert rank_of(name) is None


push = encode(Push(1, 2, 3, b"\1"))[0]
WRONG: dict[str, tuple[list[bytes], str]] = {
    "nothing": ([], "not one or two frames"),
    "three frames": ([push, b"", b""], "not one or two frames"),
    "an empty header": ([b""], "the header cannot be read"),
    "a long header": ([bytes(MOST_HEADER_BYTES + 1)], "the header is too long"),
    "a long payload": ([push, bytes(MOST_PAYLOAD_BYTES + 1)], "the payload is too long"),
    "no payload": ([push], "the payload is missing"),
    "a payload too many": ([*encode(Leave()), b""], "there is an extra payload"),
    "a tag that there is not": ([msgspec.msgpack.encode([99])], "the header cannot be read"),
    "a field too many": ([msgspec.msgpack.encode([6, 1, 2])], "the header cannot be read"),
    "a field too few": ([msgspec.msgpack.encode([6])], "the header cannot be read"),
    "a negative number": ([msgspec.msgpack.encode([6, -1])], "the header cannot be read"),
    "not UTF-8": ([b"\x93\x05\xa1\xff\x00", b""], "the header cannot be read"),
    "deep nesting": ([b"\x91" * MOST_HEADER_BYTES], "the header cannot be read"),
    "a long array": ([b"\xdd\xff\xff\xff\xff\x06"], "the header cannot be read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_message_is_said_in_one_of_few_ways(case: str) -> None:
    sent, reason = WRONG[case]
    assert decode(sent) == Malformed(reason)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "the table cannot be read"),
        (b"\xdd\xff\xff\xff\xff", "the table cannot be read"),
        (bytes(frames.MOST_TABLE_BYTES + 1), "the table is too long"),
        (encode_table([Row("float32", 6, 0)]), "an operation is not a whole number of elements"),
        (msgspec.msgpack.encode([["float31", 4, 0]]), "the table cannot be read"),
        (msgspec.msgpack.encode([["float32", 0, 0]]), "the table cannot be read"),
        (msgspec.msgpack.encode([["float32", 2**40, 0]]), "the table cannot be read"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(payload: bytes, reason: str) -> None:
    assert decode_table(payload) == Malformed(reason)


def mutated(chance: random.Random, message: bytes) -> bytes:
    """Return a valid message with a few bytes changed, cut out, or doubled."""
    changed = bytearray(message)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed) + 1)
        match chance.randrange(3):
            case 0 if place < len(changed):
                changed[place] = chance.randrange(256)
            case 1:
                del changed[place : place + chance.randint(1, 3)]
            case _:
                changed[place:place] = chance.randbytes(chance.randint(1, 5))
    return bytes(changed)


def test_ten_thousand_messages_of_noise_raise_nothing_and_cost_little() -> None:
    chance = random.Random(1)
    table = encode_table([Row("float32", 4 * k, k) for k in range(1, 30)])
    valid = [
        [encode(Join(1, "0.1.0", "a job", 3, 8))[0]],
        encode(Layout(1, "digest", 2**20), table),
        encode(Push(1, 2, 3, b"\1\0", 5), b"abcdefgh"),
        encode(Got(1, 2, 3)),
        encode(Say("a page", 4), b"x"),
        encode(Refused("a sentence")),
        encode(Heard("a page", 4), encode_heard([b"a", b"b"])),
    ]
    began, answers = time.process_time(), list[Any]()
    for number in range(10_000):
        if number % 2:
            sent = [chance.randbytes(chance.randint(0, 80)) for _ in range(chance.randint(0, 3))]
        else:
            sent = [mutated(chance, bytes(frame)) for frame in chance.choice(valid)]
        answers.append(decode(sent))
        for frame in sent:
            for read in (decode_table, decode_heard):
                assert isinstance(read(frame), Malformed | tuple | list)
    assert all(isinstance(answer, Message | Malformed) for answer in answers)
    reasons = {answer.reason for answer in answers if isinstance(answer, Malformed)}
    assert len(reasons) < 10
    assert any(isinstance(answer, Message) for answer in answers)  # some mutations are harmless
    assert time.process_time() - began < 20
