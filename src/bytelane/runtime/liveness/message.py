"""Datagrams between sentinels: heartbeats and endings, each about one rank.

A datagram carries the sender's token, which only members of the run know. That keeps out strays,
other runs and guesses; it does not keep out an attacker who can read the network, and neither does
gloo.
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

TOKEN_BYTES = 16
REASON_BYTES = 1000  # so that a datagram fits into every packet

_HEAD = struct.Struct("!4sBBB16sIIQQI")
_MAGIC = b"blw2"


class Kind(IntEnum):
    """The kind of message about a rank. After ``LEFT``, ``DIED`` or ``FAILED`` no other follows.

    ``HELLO`` introduces the sender to a sentinel that may not know it yet: it carries the token of
    the *receiver*, which the receiver's rank has published, and the sender's address as its reason.
    """

    BEAT = 0
    ACKNOWLEDGED = 1
    HELLO = 2
    LEFT = 3
    DIED = 4
    FAILED = 5

    @property
    def is_ending(self) -> bool:
        return self >= Kind.LEFT


class Fault(IntEnum):
    """Which error a lost rank becomes."""

    LOST = 0
    FROZEN = 1
    FAILED = 2


class State(IntEnum):
    """The state of a process, from the kernel."""

    UNKNOWN = 0
    RUNNING = 1
    SLEEPING = 2
    STOPPED = 3
    TRACED = 4


class Answer(IntEnum):
    """The answer to a TCP probe of a silent peer."""

    NONE = 0
    THERE = 1
    GONE = 2


class Message(NamedTuple):
    """``number`` grows with every message of a sender, since datagrams may overtake each other."""

    kind: Kind
    rank: int
    number: int
    progress: int = 0
    state: State = State.UNKNOWN
    stopped_ms: int = 0
    reason: str = ""
    fault: Fault = Fault.FAILED
    about: int = -1
    """The rank because of which this one has ``FAILED``; -1: itself."""


def encode(message: Message, token: bytes) -> bytes:
    """Return the datagram; a reason that is too long is cut."""
    head = _HEAD.pack(
        _MAGIC,
        message.kind,
        message.state,
        message.fault,
        token,
        message.rank,
        message.rank if message.about < 0 else message.about,
        message.number,
        message.progress,
        min(message.stopped_ms, 2**32 - 1),
    )
    return head + message.reason.encode(errors="replace")[:REASON_BYTES]


def decode(datagram: bytes, tokens: Mapping[int, bytes], own: int) -> Message | None:
    """Return the message, or None if it is not from the rank that it names.

    ``tokens`` are those of all known ranks; ``own`` is the receiver, whose token a ``HELLO`` has.
    """
    if not _HEAD.size <= len(datagram) <= _HEAD.size + REASON_BYTES:
        return None
    magic, kind, state, fault, token, rank, about, number, progress, stopped_ms = _HEAD.unpack_from(
        datagram
    )
    if magic != _MAGIC or kind not in _KINDS or state not in _STATES or fault not in _FAULTS:
        return None
    if token != tokens.get(own if kind == Kind.HELLO else rank):
        return None
    reason = datagram[_HEAD.size :].decode(errors="ignore")  # it may be cut within a character
    about = -1 if about == rank else about
    return Message(
        Kind(kind), rank, number, progress, State(state), stopped_ms, reason, Fault(fault), about
    )


_KINDS = frozenset(Kind)
_STATES = frozenset(State)
_FAULTS = frozenset(Fault)
