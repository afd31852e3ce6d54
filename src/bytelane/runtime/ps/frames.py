"""Messages between workers and parameter servers: typed, length-checked, never executed.

A ZeroMQ message is one frame, the *header*, or two: the header and a *payload* of raw bytes. A
worker has two connections to every server and joins on both::

    up     Join, Layout, Push, Say, Beat, Leave  ──▶   ◀── Joined, Refused, Taken, Beat
    down   Join, Got                             ──▶   ◀── Joined, Sum, Heard

Messages of one connection arrive in the order in which they were sent. Between the two connections
there is no order: a ``Got`` may arrive after the ``Push`` of the next round.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

PROTOCOL = 1

MOST_HEADER_BYTES = 64 * 1024
MOST_PAYLOAD_BYTES = 64 * 1024 * 1024
"""Of a push, a sum or an exchange: a larger slice must be cut."""
INDEX_BYTES = 8
"""Of a row of a table, where only touched rows travel: an int64."""
MOST_TABLE_BYTES = 8 * 1024 * 1024
MOST_OPERATIONS = 2**18
MOST_PARTS = 60_000
MOST_RANKS = 2**16
SESSION_BYTES = 8
BEAT_S = 1.0
"""A worker sends a Beat on *up* this often, whatever else it sends; the server answers each."""

Buffer: TypeAlias = bytes | bytearray | memoryview
Kind = Literal[
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "complex64",
    "complex128",
]
ELEMENT_BYTES: dict[str, int] = dict(
    zip(get_args(Kind), (4, 8, 2, 2, 1, 2, 4, 8, 8, 16), strict=True)
)

_Number = Annotated[int, Meta(ge=0, le=2**62)]
_Operation = Annotated[int, Meta(ge=0, lt=MOST_OPERATIONS)]
_Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
_Count = Annotated[int, Meta(ge=1, le=MOST_RANKS)]
_Signal = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Name = Annotated[str, Meta(max_length=200)]
_Used = Annotated[bytes, Meta(max_length=MOST_PARTS)]


class _Header(
    Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag_field="t", gc=False
):
    """A header: a tag, then its fields in order."""


class Join(_Header, frozen=True, tag=1):
    """A worker asks to take part; sent on both connections."""

    protocol: _Number
    version: _Name
    """Version of the package."""
    job: _Name
    """The same for all ranks of a job, and for no other job."""
    rank: _Rank
    world: _Count
    server: _Rank = 0
    """Place of this server in the worker's list of servers."""
    servers: _Count = 1


class Layout(_Header, frozen=True, tag=2):
    """From here on, pushes are of this layout. Its payload is the table of operations."""

    number: _Number
    """Rises; a rank never goes back to an earlier one."""
    digest: _Name
    """Names all that the ranks must agree on, also what this server does not see."""
    credit_bytes: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    """The server sends a worker the next sum while fewer bytes than this are unacknowledged."""
    straggler_first: bool = False


class Push(_Header, frozen=True, tag=3):
    """A rank's contribution to one operation; the payload holds its elements."""

    layout: _Number
    round: _Number
    operation: _Operation
    used: _Used
    """Per part of the operation one byte: 1 if this rank's backward pass has reached the tensor."""
    signal: _Signal = 0
    """Rank 0's request."""


class Got(_Header, frozen=True, tag=4):
    """A worker has taken a sum: the server may forget it, and send more."""

    layout: _Number
    round: _Number
    operation: _Operation


class Say(_Header, frozen=True, tag=5):
    """A rank's contribution to an exchange; the payload may be empty."""

    page: _Name
    number: _Number


class Beat(_Header, frozen=True, tag=6):
    """A sign of life; the answer has the same number."""

    number: _Number


class Leave(_Header, frozen=True, tag=7):
    """A worker has ended in order."""


class Joined(_Header, frozen=True, tag=8):
    """The worker takes part, on the connection on which it asked."""

    server: _Rank
    servers: _Count


class Refused(_Header, frozen=True, tag=9):
    """The worker cannot take part, or go on; a sentence says why."""

    reason: Annotated[str, Meta(max_length=1000)]


class Taken(_Header, frozen=True, tag=10):
    """The server holds a push: its bytes are no longer in flight."""

    layout: _Number
    round: _Number
    operation: _Operation


class Sum(_Header, frozen=True, tag=11):
    """The sum of all ranks' contributions to an operation; the payload holds its elements."""

    layout: _Number
    round: _Number
    operation: _Operation
    used: _Used
    """Per part one byte: 1 if any rank's backward pass has reached the tensor."""
    signal: _Signal = 0
    """Rank 0's request in this round."""


class Heard(_Header, frozen=True, tag=12):
    """What all ranks have said in an exchange; see :func:`decode_heard` for the payload."""

    page: _Name
    number: _Number


ToServer: TypeAlias = Join | Layout | Push | Got | Say | Beat | Leave
ToWorker: TypeAlias = Joined | Refused | Taken | Sum | Heard | Beat
Header: TypeAlias = (
    Join | Layout | Push | Got | Say | Beat | Leave | Joined | Refused | Taken | Sum | Heard
)
_WITH_PAYLOAD = (Layout, Push, Say, Sum, Heard)


class Row(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One operation of a layout, as a server knows it."""

    kind: Kind
    bytes: Annotated[int, Meta(ge=1, le=MOST_PAYLOAD_BYTES)]
    place: _Operation
    """Place in the order of pulls: 0 is the most urgent; equal places go by operation number."""
    parts: Annotated[int, Meta(ge=1, le=MOST_PARTS)] = 1
    """How many tensors, or parts of them, it carries: the number of its used flags."""
    rows: Annotated[int, Meta(ge=0, le=MOST_PAYLOAD_BYTES)] = 0
    """Rows of a table of which only touched ones travel, ``bytes`` is all of them; 0: dense."""

    @property
    def row_bytes(self) -> int:
        """Size of a row of a table."""
        return self.bytes // self.rows


class Message(NamedTuple):
    """A message that can be used."""

    header: Header
    payload: memoryview
    """Empty where the header has none."""


class Malformed(NamedTuple):
    """A message that cannot be used; few different reasons, so that they can be counted."""

    reason: str


_Table: TypeAlias = Annotated[tuple[Row, ...], Meta(max_length=MOST_OPERATIONS)]
_headers = msgspec.msgpack.Decoder(Header)
_tables = msgspec.msgpack.Decoder(_Table)
_encoder = msgspec.msgpack.Encoder()
_heard = msgspec.msgpack.Decoder(list[bytes])
# ValueError: text that is not UTF-8. RecursionError: arrays nested too deep.
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


def encode(header: Header, payload: Buffer | None = None) -> list[Buffer]:
    """Return the frames of a message."""
    first = _encoder.encode(header)
    return [first] if payload is None else [first, payload]


def decode(frames: Sequence[Any]) -> Message | Malformed:
    """Read the frames of a message (bytes, or anything with a buffer); never raise."""
    if not 1 <= len(frames) <= 2:
        return Malformed("not one or two frames")
    first, *rest = (memoryview(frame).cast("B") for frame in frames)
    if len(first) > MOST_HEADER_BYTES:
        return Malformed("the header is too long")
    if rest and len(rest[0]) > MOST_PAYLOAD_BYTES:
        return Malformed("the payload is too long")
    try:
        header = _headers.decode(first)
    except _UNREADABLE:
        return Malformed("the header cannot be read")
    if isinstance(header, _WITH_PAYLOAD) != bool(rest):
        return Malformed("the payload is missing" if not rest else "there is an extra payload")
    return Message(header, rest[0] if rest else memoryview(b""))


def encode_table(rows: Sequence[Row]) -> bytes:
    """Return the payload of a :class:`Layout`."""
    return _encoder.encode(tuple(rows))


def decode_table(payload: Buffer) -> tuple[Row, ...] | Malformed:
    """Read the payload of a :class:`Layout`; never raise."""
    if len(payload) > MOST_TABLE_BYTES:
        return Malformed("the table is too long")
    try:
        rows = _tables.decode(payload)
    except _UNREADABLE:
        return Malformed("the table cannot be read")
    if any(row.bytes % ELEMENT_BYTES[row.kind] for row in rows):
        return Malformed("an operation is not a whole number of elements")
    if not all(map(_is_table, (row for row in rows if row.rows))):
        return Malformed("a table is not a whole number of rows, or is too large")
    return rows


def _is_table(row: Row) -> bool:
    is_whole = row.bytes % (row.rows * ELEMENT_BYTES[row.kind]) == 0
    fits = row.bytes + row.rows * INDEX_BYTES <= MOST_PAYLOAD_BYTES
    return is_whole and fits and row.parts == 1


def encode_heard(said: Sequence[Buffer]) -> bytes:
    """Return the payload of a :class:`Heard`: what every rank has said, in rank order."""
    return _encoder.encode(list(said))


def decode_heard(payload: Buffer) -> list[bytes] | Malformed:
    """Read the payload of a :class:`Heard`; never raise."""
    try:
        return _heard.decode(payload)
    except _UNREADABLE:
        return Malformed("what was said cannot be read")


def identity(rank: int, session: bytes) -> bytes:
    """Return a worker's name on both of its connections to a server."""
    assert len(session) == SESSION_BYTES
    return b"w" + rank.to_bytes(2, "big") + session


def rank_of(name: bytes) -> int | None:
    """Return the rank that an identity names, or None."""
    if len(name) != 3 + SESSION_BYTES or name[:1] != b"w":
        return None
    return int.from_bytes(name[1:3], "big")
