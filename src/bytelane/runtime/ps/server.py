"""A parameter server without its sockets: messages in, messages out.

Whatever is malformed, unknown or out of place is dropped and counted; it changes nothing. See
:mod:`bytelane.runtime.ps.frames` for the messages, :mod:`bytelane.runtime.ps.round_sums` for the
sums, :mod:`bytelane.runtime.ps.outbox` for the order in which they are sent.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bytelane.runtime.ps.drops import Drops
from bytelane.runtime.ps.exchanges import Exchanges
from bytelane.runtime.ps.frames import (
    Beat,
    Buffer,
    Got,
    Header,
    Heard,
    Join,
    Joined,
    Layout,
    Leave,
    Malformed,
    Push,
    Refused,
    Say,
    Sum,
    Taken,
    decode,
    encode,
    encode_heard,
)
from bytelane.runtime.ps.layouts import Layouts, LiveLayout
from bytelane.runtime.ps.members import Member, Members, Side
from bytelane.runtime.ps.outbox import Send
from bytelane.runtime.ps.round_sums import Misplaced, Summed

_UNKNOWN = "its sender has not joined"
_ELSEWHERE = "it does not belong on this connection"


class Outgoing(NamedTuple):
    """A message to a worker."""

    side: Side
    to: bytes
    frames: list[Buffer]


class Server:
    """The state of a server, and its answer to every message."""

    def __init__(self, drops: Drops) -> None:
        self._drops = drops
        self._members = Members()
        self._out: list[Outgoing] = []
        # Made when the first worker has joined: that says how many there will be.
        self._layouts = Layouts(0)
        self._exchanges = Exchanges(1)

    def receive(self, side: Side, name: bytes, frames: Sequence[Any], now: float) -> list[Outgoing]:
        """Take a message that came from this identity; return the messages to send."""
        self._out = []
        message = decode(frames)
        if isinstance(message, Malformed):
            self._drops.count(message.reason, now)
            return []
        header, payload = message
        if isinstance(header, Join):
            wrong = self._join(side, name, header, now)
        elif (member := self._members.find(side, name, now)) is None:
            wrong = Misplaced(_UNKNOWN)
        elif side == "up":
            wrong = self._on_up(member, header, payload)
        else:
            wrong = self._on_down(member, header)
        if wrong is not None:
            self._drops.count(wrong.reason, now)
        return self._out

    def is_over(self, now: float) -> bool:
        """Whether the job has ended: its workers have left, or have fallen silent."""
        return self._members.is_over(now)

    def is_used(self, now: float, silence_s: float) -> bool:
        """Whether a worker that has joined and not left was heard within this time."""
        return self._members.are_heard(now, silence_s)

    def takes_part(self, name: bytes) -> bool:
        """Whether a worker of this identity has joined and not left."""
        return any(member.name == name for member in self._members.all())

    def _on_up(self, member: Member, header: Header, payload: memoryview) -> Misplaced | None:
        match header:
            case Push():
                return self._push(member, header, payload)
            case Layout():
                return self._layout(member, header, payload)
            case Say():
                return self._say(member, header, payload)
            case Beat():
                self._send("up", member.name, header)
            case Leave():
                self._members.leave(member.rank)
            case _:
                return Misplaced(_ELSEWHERE)
        return None

    def _on_down(self, member: Member, header: Header) -> Misplaced | None:
        if not isinstance(header, Got):
            return Misplaced(_ELSEWHERE)
        live = self._layouts.of_acknowledgement(header.layout)
        if live is None:
            return Misplaced("a sum of a layout that there is not is acknowledged")
        sends = live.outbox.acknowledged(member.rank, header.round, header.operation)
        if isinstance(sends, Misplaced):
            return sends
        wrong = live.sums.acknowledge(header.round, member.rank, header.operation)
        assert wrong is None, wrong  # the outbox sends sums only, and each once
        self._send_sums(live, sends)
        self._layouts.forget_old()
        return None

    def _join(self, side: Side, name: bytes, asked: Join, now: float) -> Misplaced | None:
        is_first = not self._members.world
        answer = self._members.join(side, name, asked, now)
        if answer is None:
            return Misplaced("its sender is not the rank that it says")
        if isinstance(answer, Joined) and is_first:
            self._layouts, self._exchanges = Layouts(asked.world), Exchanges(asked.world)
        self._send(side, name, answer)
        return None

    def _layout(self, member: Member, header: Layout, payload: memoryview) -> Misplaced | None:
        reason = self._layouts.announce(member.rank, header, bytes(payload))
        if reason is None:
            return None
        self._send("up", member.name, Refused(reason))
        return Misplaced("a layout cannot be used")

    def _push(self, member: Member, header: Push, payload: memoryview) -> Misplaced | None:
        live = self._layouts.of_push(member.rank, header.layout)
        if live is None:
            return Misplaced("a push of a layout that its rank does not use")
        result = live.sums.push(
            header.round, member.rank, header.operation, payload, header.used, header.signal
        )
        if isinstance(result, Misplaced):
            return result
        taken = Taken(header.layout, header.round, header.operation)
        self._send("up", member.name, taken)
        if isinstance(result, Summed):
            behind, row = live.sums.pushed_bytes, live.rows[result.operation]
            size = len(result.payload) if row.rows else None
            sends = live.outbox.summed(result.round, result.operation, behind, size)
            self._send_sums(live, sends)
        return None

    def _say(self, member: Member, header: Say, payload: memoryview) -> Misplaced | None:
        page, number = header.page, header.number
        result = self._exchanges.say(member.rank, page, number, bytes(payload))
        if isinstance(result, Misplaced):
            self._send("up", member.name, Refused(f"exchange {number}: {result.reason}"))
            return result
        if result is not None:
            heard = encode_heard(result)
            for one in self._members.all():
                self._send("down", one.name, Heard(page, number), heard)
        return None

    def _send_sums(self, live: LiveLayout, sends: Iterable[Send]) -> None:
        for worker, number, operation in sends:
            found, name = live.sums.find(number, operation), self._members.name_of(worker)
            if found is not None and name is not None:
                header = Sum(live.header.number, number, operation, found.used, found.signal)
                self._send("down", name, header, found.payload)

    def _send(self, side: Side, to: bytes, header: Header, payload: Buffer | None = None) -> None:
        self._out.append(Outgoing(side, to, encode(header, payload)))
