"""What sentinels and ranks say to each other, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.runtime.liveness.address import ADDRESS_BYTES, Address
from bytelane.runtime.liveness.failure_detector import Loss
from bytelane.runtime.liveness.frames import Frame, FrameKind, Frames
from bytelane.runtime.liveness.message import (
    REASON_BYTES,
    TOKEN_BYTES,
    Fault,
    Kind,
    Message,
    State,
    decode,
    encode,
)
from bytelane.runtime.liveness.process_state import parse_state

TOKENS = {rank: bytes([rank]) * TOKEN_BYTES for rank in range(8)}
OWN = 0

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=REASON_BYTES // 4)
messages = st.builds(
    Message,
    kind=st.sampled_from([kind for kind in Kind if kind is not Kind.HELLO]),
    rank=st.integers(0, len(TOKENS) - 1),
    number=st.integers(0, 2**64 - 1),
    progress=st.integers(0, 2**64 - 1),
    state=st.sampled_from(State),
    stopped_ms=st.integers(0, 2**32 - 1),
    reason=texts,
    fault=st.sampled_from(Fault),
    about=st.one_of(st.just(-1), st.integers(len(TOKENS), 2**32 - 1)),
)


# Datagrams


@given(messages)
def test_what_was_said_is_heard(message: Message) -> None:
    assert decode(encode(message, TOKENS[message.rank]), TOKENS, OWN) == message


@given(messages, st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES))
def test_a_wrong_token_is_not_heard(message: Message, token: bytes) -> None:
    heard = decode(encode(message, token), TOKENS, OWN)
    assert (heard is None) == (token != TOKENS[message.rank])


@given(messages)
def test_nobody_speaks_for_another_rank(message: Message) -> None:
    other = TOKENS[(message.rank + 1) % len(TOKENS)]
    assert decode(encode(message, other), TOKENS, OWN) is None


@given(st.binary(max_size=2048))
def test_noise_is_not_heard(noise: bytes) -> None:
    assert decode(noise, TOKENS, OWN) is None


@given(messages, st.data())
def test_a_datagram_that_is_cut_or_spoilt_never_raises(
    message: Message, data: st.DataObject
) -> None:
    datagram = bytearray(encode(message, TOKENS[message.rank]))
    datagram = datagram[: data.draw(st.integers(0, len(datagram)))]
    if datagram:
        datagram[data.draw(st.integers(0, len(datagram) - 1))] ^= data.draw(st.integers(0, 255))
    heard = decode(bytes(datagram), TOKENS, OWN)
    assert heard is None or encode(heard, TOKENS[heard.rank])


def test_a_rank_that_does_not_exist_is_not_heard() -> None:
    message = Message(Kind.DIED, len(TOKENS), 1)
    assert decode(encode(message, TOKENS[0]), TOKENS, OWN) is None


@pytest.mark.parametrize(("place", "value"), [(4, len(Kind)), (5, len(State)), (6, len(Fault))])
def test_what_does_not_exist_is_not_heard(place: int, value: int) -> None:
    datagram = bytearray(encode(Message(Kind.DIED, 1, 1), TOKENS[1]))
    assert decode(bytes(datagram), TOKENS, OWN) is not None
    datagram[place] = value
    assert decode(bytes(datagram), TOKENS, OWN) is None


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9))
def test_a_long_reason_is_cut_between_letters(reason: str) -> None:
    reason = reason * REASON_BYTES
    datagram = encode(Message(Kind.FAILED, 1, 1, reason=reason), TOKENS[1])
    heard = decode(datagram, TOKENS, OWN)
    assert heard is not None
    assert reason.startswith(heard.reason)
    assert len(heard.reason.encode()) > REASON_BYTES - 4
    assert len(datagram) < 1200  # a packet


def test_a_reason_that_is_no_text_is_sent_all_the_same() -> None:
    heard = decode(encode(Message(Kind.FAILED, 1, 1, reason="a\udc80b"), TOKENS[1]), TOKENS, OWN)
    assert heard is not None
    assert heard.reason == "a?b"


def test_an_introduction_carries_the_token_of_the_one_who_is_to_hear_it() -> None:
    hello = Message(Kind.HELLO, 9, 1, reason="where I am")  # of a rank that is not known here
    assert decode(encode(hello, TOKENS[OWN]), TOKENS, OWN) == hello
    assert decode(encode(hello, TOKENS[1]), TOKENS, OWN) is None


# Addresses

addresses = st.builds(
    Address,
    host=st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str)),
    port=st.integers(1, 2**16 - 1),
    pid=st.integers(1, 2**22),
    token=st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES),
)


@given(addresses)
def test_an_address_survives_the_journey_and_is_always_as_long(address: Address) -> None:
    text = address.encode()
    assert len(text) == ADDRESS_BYTES
    assert Address.decode(text) == address


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff" * 96, b"host 1 2", b"host 1 2 00", b"host 70000 2 " + b"00" * 16, b"h x 2 zz"],
)
def test_what_is_no_address_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller names the rank
        Address.decode(text)


# Frames

frames = st.builds(Frame, st.sampled_from(FrameKind), st.binary(max_size=300))


@given(st.lists(frames, max_size=8), st.data())
def test_frames_are_put_together_however_the_stream_was_cut(
    sent: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(frame.encode() for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = Frames()
    heard = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        heard += reader.feed(stream[start:end])
    assert heard == sent


@given(st.sampled_from(Fault), st.integers(0, 2**32 - 1), texts)
def test_a_loss_reaches_the_rank_as_it_was_found(fault: Fault, rank: int, text: str) -> None:
    loss = Loss(fault, rank, text)
    assert Loss.decode(loss.encode()) == loss


# What the kernel says


@pytest.mark.parametrize(
    ("letter", "state"),
    [
        ("R", State.RUNNING),
        ("S", State.SLEEPING),
        ("D", State.SLEEPING),
        ("T", State.STOPPED),
        ("t", State.TRACED),
        ("Z", State.UNKNOWN),
        ("?", State.UNKNOWN),
    ],
)
@pytest.mark.parametrize("name", ["python", "a b", "T) T (T", ")"])
def test_the_state_follows_the_name_whatever_that_is(name: str, letter: str, state: State) -> None:
    assert parse_state(f"12 ({name}) {letter} 1 2 3".encode()) is state


def test_an_empty_answer_of_the_kernel_is_no_state() -> None:
    assert parse_state(b"") is State.UNKNOWN
