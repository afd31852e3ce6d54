"""What sentinels tell each other: one datagram, about one rank.

It carries the sender's token, which only members of the run know. That keeps out strays, other runs
and guesses; it does not keep out somebody who can read the network, and neither does gloo.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

TOKEN_BYTES = 16
REASON_BYTES = 1000  # so that a datagram fits into every packet

_HEAD = struct.Struct("!4sBB16sIQQI")
_MAGIC = b"blw1"


class Kind(IntEnum):
    """What is said of the rank. All but the first two are the last thing that is said of it."""

    BEAT = 0
    ACKNOWLEDGED = 1
    LEFT = 2
    DIED = 3
    FAILED = 4

    @property
    def is_ending(self) -> bool:
        return self >= Kind.LEFT


class State(IntEnum):
    """What the kernel says of a process."""

    UNKNOWN = 0
    RUNNING = 1
    SLEEPING = 2
    STOPPED = 3
    TRACED = 4


class Message(NamedTuple):
    """``number`` grows with every message of a sender, since datagrams may overtake each other."""

    kind: Kind
    rank: int
    number: int
    progress: int = 0
    state: State = State.UNKNOWN
    stopped_ms: int = 0
    reason: str = ""


def encode(message: Message, token: bytes) -> bytes:
    """Return the datagram; a reason that is too long is cut."""
    head = _HEAD.pack(
        _MAGIC,
        message.kind,
        message.state,
        token,
        message.rank,
        message.number,
        message.progress,
        min(message.stopped_ms, 2**32 - 1),
    )
    return head + message.reason.encode(errors="replace")[:REASON_BYTES]


def decode(datagram: bytes, tokens: Sequence[bytes]) -> Message | None:
    """Return what it says, or None if it is not from the rank that it names."""
    if not _HEAD.size <= len(datagram) <= _HEAD.size + REASON_BYTES:
        return None
    magic, kind, state, token, rank, number, progress, stopped_ms = _HEAD.unpack_from(datagram)
    if magic != _MAGIC or rank >= len(tokens) or token != tokens[rank]:
        return None
    if kind not in _KINDS or state not in _STATES:
        return None
    reason = datagram[_HEAD.size :].decode(errors="ignore")  # it may be cut within a letter
    return Message(Kind(kind), rank, number, progress, State(state), stopped_ms, reason)


_KINDS = frozenset(Kind)
_STATES = frozenset(State)
