"""A page of memory that a rank and its sentinel share.

The rank writes its own progress, the sentinel its pulse and the last news of each peer. That wakes
neither. A reader may see half of a change; each number by itself is right.
"""

import mmap
import struct
from typing import NamedTuple

from bytelane.runtime.liveness.message import Kind, Message, State

_ROW = struct.Struct("=QdBB6x")
# Numbers in front of the rows: operations that the rank has launched, and that are over; how often
# the sentinel has looked at it.
LAUNCHED, FINISHED, PULSE = range(3)
_ROWS_AT = 24


class Row(NamedTuple):
    """The last news of a peer, and when it came, on this machine's monotonic clock."""

    progress: int
    heard_s: float
    """0: never."""
    kind: Kind
    state: State

    def silent_s(self, now_s: float) -> float | None:
        """Return how long ago that was; None if never."""
        return now_s - self.heard_s if self.heard_s else None


class SharedPage:
    """Maps a file of :func:`size_bytes`; the file can be closed afterwards."""

    def __init__(self, descriptor: int, world: int) -> None:
        self._memory: mmap.mmap | bytearray = mmap.mmap(descriptor, size_bytes(world))
        self.own = memoryview(self._memory)[:_ROWS_AT].cast("Q")
        """Three numbers: :data:`LAUNCHED`, :data:`FINISHED`, :data:`PULSE`."""

    def detach(self) -> None:
        """Go on with a private copy; the shared page and its file are freed by their last user."""
        self._memory = bytearray(self._memory)
        self.own = memoryview(self._memory)[:_ROWS_AT].cast("Q")

    def write(self, message: Message, now_s: float) -> None:
        row = (message.progress, now_s, message.kind, message.state)
        _ROW.pack_into(self._memory, _offset(message.rank), *row)

    def read(self, rank: int) -> Row:
        progress, heard_s, kind, state = _ROW.unpack_from(self._memory, _offset(rank))
        return Row(progress, heard_s, Kind(kind), State(state))


def size_bytes(world: int) -> int:
    return _offset(world)


def _offset(rank: int) -> int:
    return _ROWS_AT + rank * _ROW.size
