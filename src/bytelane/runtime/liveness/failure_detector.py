"""Failure detector: decide from heartbeats which peer is lost, frozen or has failed.

Pure: messages and ticks in, findings out; ``now_s`` is an argument.

::

    unheard ──▶ alive ⇄ silent ──(lost_s)──▶ PeerLost
                  │       ├──(its process is gone, and its host is not)──▶ PeerLost
                  │       └──(its process is there, and nothing moves)───▶ PeerFrozen
                  ├──(stopped for frozen_s)──▶ PeerFrozen
                  ├──(it raised)─────────────▶ PeerFailed
                  ├──(it has lost a peer)────▶ the same loss
                  ├──(its process is gone)───▶ PeerLost
                  └──(it left in order)──▶ left ──(we have launched more than it did)──▶ PeerLost

Only the first loss is reported: later ones are usually its consequences. Silence of a peer on
another host that was never heard is no loss, since the network may not let datagrams through.
Neither is silence while operations end here, in which that peer takes part: then only its sentinel
is lost.
"""

from typing import NamedTuple

from bytelane.runtime.liveness.message import Answer, Fault, Kind, Message, State
from bytelane.runtime.liveness.rank_names import name_ranks

# Time counts only while we listen: a sentinel that was itself held up must not blame its peers.
MOST_TICK_S = 1.0
# Ctrl-Z stops all ranks of a host. Continued, each may see the others' stop a little longer.
AWAKE_S = 2.0
# A link that is cut silences many peers within a second: one line for all of them.
GATHER_S = 1.0
# Three heartbeats are missing: probe the peer's host by TCP.
KNOCK_S = 3.0
# A lost sentinel is replaced within this time; after it, silence means that its rank is stopped.
REPLACED_S = 3.0


class Limits(NamedTuple):
    """Time limits after which a peer is reported or lost, in seconds."""

    frozen_s: float = 5.0
    """Stopped by a signal for this long: an error."""
    silent_s: float = 8.0
    """Not heard of for this long: a printed line."""
    lost_s: float = 60.0
    """Not heard of for this long: an error."""


class Loss(NamedTuple):
    """The peer because of which training cannot go on."""

    fault: Fault
    rank: int
    text: str

    def encode(self) -> bytes:
        return bytes([self.fault]) + self.rank.to_bytes(4, "big") + self.text.encode()

    @classmethod
    def decode(cls, payload: bytes) -> "Loss":
        rank = int.from_bytes(payload[1:5], "big")
        return cls(Fault(payload[0]), rank, payload[5:].decode())


Finding = Loss | str
"""A loss, or a line to print."""


class _Peer:
    def __init__(self, rank: int, place: str, is_near: bool) -> None:
        self.rank = rank
        self.place = place
        self.is_near = is_near
        self.last = Message(Kind.BEAT, rank, 0)
        self.heard_s = 0.0
        self.is_silent = False
        self.answer = Answer.NONE

    @property
    def was_heard(self) -> bool:
        return self.last.number > 0

    @property
    def can_be_heard(self) -> bool:
        return self.was_heard or self.is_near

    @property
    def has_ended(self) -> bool:
        return self.last.kind.is_ending


class FailureDetector:
    """Judges the peers of one rank, as far as they are known."""

    def __init__(self, rank: int, limits: Limits, now_s: float) -> None:
        self.loss: Loss | None = None
        self._rank = rank
        self._peers: dict[int, _Peer] = {}
        self._limits = limits
        self._ticked_s = now_s
        self._listened_s = 0.0
        self._awake_s = 0.0
        self._progress = 0
        self._finished = 0
        self._moved_s = 0.0
        self._returns: list[tuple[int, float]] = []
        self._first_return_s = 0.0

    def add(self, rank: int, place: str, *, is_near: bool = False) -> None:
        """Begin to watch a peer; ``place`` names its process and host.

        ``is_near``: it is on this host, so that datagrams certainly get through.
        """
        self._peers[rank] = _Peer(rank, place, is_near)
        self._peers[rank].heard_s = self._listened_s

    def hear(self, message: Message) -> list[Finding]:
        """Record a message; ignore an old one, or one after the peer's last."""
        peer = self._peers.get(message.rank)
        if peer is None or peer.has_ended or message.number <= peer.last.number:
            return []
        if peer.is_silent:
            self._welcome(peer)
        peer.last = message
        peer.heard_s = self._listened_s
        peer.answer = Answer.NONE
        return self._look_at(peer)

    def hear_answer(self, rank: int, answer: Answer) -> list[Finding]:
        """Record the answer to a TCP probe of a peer."""
        peer = self._peers[rank]
        if answer is not Answer.NONE:
            peer.answer = answer
        return self._look_at(peer)

    def tick(self, state: State, progress: int, now_s: float, finished: int = 0) -> list[Finding]:
        """Let time pass; record our own rank's state and its launched and finished operations."""
        passed_s = min(now_s - self._ticked_s, MOST_TICK_S)
        self._ticked_s = now_s
        self._listened_s += passed_s
        self._awake_s = 0.0 if state is State.STOPPED else self._awake_s + passed_s
        self._progress = progress
        if finished != self._finished:
            self._finished, self._moved_s = finished, self._listened_s
        lines = self._notice_silence() + self._notice_returns()
        found: list[Finding] = [] if self.loss else [*lines]
        for peer in self._peers.values():
            found += self._look_at(peer)
        return found

    def last(self, rank: int) -> Message:
        """Return the newest message of a peer."""
        return self._peers[rank].last

    def listeners(self) -> set[int]:
        """Return the peers that would acknowledge a message."""
        return {p.rank for p in self._peers.values() if not p.has_ended and not p.is_silent}

    def unheard(self) -> list[int]:
        """Return the peers that were never heard: they may not know our address."""
        return [peer.rank for peer in self._peers.values() if not peer.was_heard]

    def doubtful(self) -> list[int]:
        """Return the peers that have fallen silent, to probe by TCP."""
        known = [p for p in self._peers.values() if p.can_be_heard and not p.has_ended]
        return [peer.rank for peer in known if self._silence_s(peer) >= self._knock_s]

    # --- losses --------------------------------------------------------------------------------

    def _look_at(self, peer: _Peer) -> list[Finding]:
        if self.loss is not None:
            return []
        if peer.has_ended:
            self.loss = self._loss_by_end(peer)
        elif self._is_frozen(peer.last):
            seconds = peer.last.stopped_ms / 1000
            text = f"has been stopped by a signal for {seconds:.0f} s ({peer.place})"
            self.loss = _loss(Fault.FROZEN, peer, text)
        elif peer.can_be_heard:
            self.loss = self._loss_by_silence(peer)
        return [self.loss] if self.loss else []

    def _loss_by_end(self, peer: _Peer) -> Loss | None:
        if peer.last.kind is Kind.FAILED:
            return self._loss_by_failure(peer)
        if peer.last.kind is Kind.DIED:
            return _loss(Fault.LOST, peer, f"has died ({peer.place})")
        if self._progress <= peer.last.progress:
            return None  # it has done its part of all that we wait for
        return _loss(Fault.LOST, peer, "has left: its script ended")

    def _loss_by_failure(self, peer: _Peer) -> Loss:
        last = peer.last
        if last.about < 0:
            return _loss(Fault.FAILED, peer, f"failed: {last.reason}")
        if last.about == self._rank:
            return _loss(Fault.FAILED, peer, f"has given up: {last.reason}")
        return Loss(last.fault, last.about, last.reason)

    def _loss_by_silence(self, peer: _Peer) -> Loss | None:
        silence_s = min(self._silence_s(peer), self._listened_s - self._moved_s)
        if peer.answer is Answer.GONE and silence_s >= self._knock_s:
            return _loss(Fault.LOST, peer, f"has died, and its sentinel too ({peer.place})")
        paused = peer.answer is Answer.THERE and self._awake_s >= AWAKE_S
        if paused and silence_s >= self._limits.frozen_s + REPLACED_S:
            text = f"has said nothing for {silence_s:.0f} s, and its host answers"
            return _loss(Fault.FROZEN, peer, f"{text}: it is stopped ({peer.place})")
        if silence_s >= self._limits.lost_s:
            text = (
                f"has not been heard of for {self._limits.lost_s:g} s: its host or network is gone"
            )
            return _loss(Fault.LOST, peer, f"{text} ({peer.place})")
        return None

    def _is_frozen(self, last: Message) -> bool:
        stopped = last.state is State.STOPPED and last.stopped_ms >= self._limits.frozen_s * 1000
        return stopped and self._awake_s >= AWAKE_S

    # --- silence -------------------------------------------------------------------------------

    @property
    def _knock_s(self) -> float:
        return min(KNOCK_S, self._limits.silent_s)

    def _silence_s(self, peer: _Peer) -> float:
        return self._listened_s - peer.heard_s

    def _notice_silence(self) -> list[str]:
        limit_s = self._limits.silent_s
        heeded = [p for p in self._peers.values() if not (p.is_silent or p.has_ended)]
        silent = [peer for peer in heeded if self._silence_s(peer) >= limit_s]
        if not any(self._silence_s(peer) >= limit_s + GATHER_S for peer in silent):
            return []
        for peer in silent:
            peer.is_silent = True
        lines = []
        if known := [peer.rank for peer in silent if peer.was_heard]:
            lines.append(
                f"nothing was heard of {name_ranks(known)} for {limit_s:g} s; "
                f"after {self._limits.lost_s:g} s that is an error"
            )
        if unknown := [peer.rank for peer in silent if not peer.was_heard]:
            lines.append(
                f"nothing was ever heard of {name_ranks(unknown)} in {limit_s:g} s; if UDP cannot "
                "get through, deaths there show only as failed transfers"
            )
        return lines

    def _welcome(self, peer: _Peer) -> None:
        peer.is_silent = False
        if not self._returns:
            self._first_return_s = self._listened_s
        self._returns.append((peer.rank, self._silence_s(peer)))

    def _notice_returns(self) -> list[str]:
        if not self._returns or self._listened_s < self._first_return_s + GATHER_S:
            return []
        names = name_ranks(sorted(rank for rank, _ in self._returns))
        longest_s = max(silence_s for _, silence_s in self._returns)
        self._returns.clear()
        return [f"now heard of {names}, after {longest_s:.0f} s of silence"]


def _loss(fault: Fault, peer: _Peer, text: str) -> Loss:
    return Loss(fault, peer.rank, f"rank {peer.rank} {text}")
