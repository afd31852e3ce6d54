"""What a rank and its sentinel say to each other: frames on a stream."""

import struct
from enum import IntEnum
from typing import NamedTuple

_HEAD = struct.Struct("=IB")


class Word(IntEnum):
    """The first three are the rank's, the others the sentinel's.

    ``CONNECT`` names one peer: its rank in 4 bytes, and its address.
    """

    CONNECT = 0
    FAIL = 1
    LEAVE = 2
    SAY = 3
    LOSS = 4


class Frame(NamedTuple):
    """One message."""

    word: Word
    payload: bytes = b""

    def encode(self) -> bytes:
        return _HEAD.pack(len(self.payload), self.word) + self.payload


class Frames:
    """Puts frames together from pieces of a stream, however it was cut."""

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
            found.append(Frame(Word(word), bytes(self._rest[_HEAD.size : end])))
            del self._rest[:end]
        return found
