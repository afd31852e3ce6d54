"""Frames between a rank and its sentinel, on a local stream socket."""

import struct
from enum import IntEnum
from typing import NamedTuple

_HEAD = struct.Struct("=IB")


class FrameKind(IntEnum):
    """The rank sends the first three, the sentinel the others.

    ``CONNECT`` names one peer: its rank in 4 bytes, and its address.
    """

    CONNECT = 0
    FAIL = 1
    LEAVE = 2
    SAY = 3
    LOSS = 4


class Frame(NamedTuple):
    """One message between a rank and its sentinel."""

    word: FrameKind
    payload: bytes = b""

    def encode(self) -> bytes:
        return _HEAD.pack(len(self.payload), self.word) + self.payload


class Frames:
    """Parses frames from the pieces of a stream, wherever it was cut."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[Frame]:
        self._rest += piece
        found = []
        while len(self._rest) >= _HEAD.size:
            length, word = _HEAD.unpack_from(self._rest)
            end = _HEAD.size + length
            if len(self._rest) < end:
                break
            found.append(Frame(FrameKind(word), bytes(self._rest[_HEAD.size : end])))
            del self._rest[:end]
        return found
