"""The process beside a rank: looks at it, tells the other sentinels, listens to them.

It ends when its rank does, by whatever signal, and outlives it by :data:`FAREWELL_S` at most: the
time that the others have to acknowledge the news.
"""

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Iterable, Sequence

from bytelane.runtime.watch.address import ADDRESS_BYTES, Address
from bytelane.runtime.watch.board import Board
from bytelane.runtime.watch.frames import Frame, Frames, Word
from bytelane.runtime.watch.guarded import Guarded
from bytelane.runtime.watch.judge import Finding, Judge, Limits, Loss
from bytelane.runtime.watch.message import Kind, Message, State
from bytelane.runtime.watch.radio import Radio

LOOK_S = 0.25
BEAT_S = 1.0
NAP_S = 0.05  # then hear several at once: to wake up costs more than to listen
REPEAT_S = 0.2
FAREWELL_S = 1.5


class Sentinel:
    """Serves one rank. Before ``connect`` it only waits for the rank's end."""

    def __init__(
        self,
        rank: int,
        *,
        channel: socket.socket,
        bound: socket.socket,
        board: Board,
        guarded: Guarded,
        limits: Limits,
    ) -> None:
        channel.setblocking(False)
        self._rank = rank
        self._channel = channel
        self._bound = bound
        self._board = board
        self._guarded = guarded
        self._limits = limits
        self._frames = Frames()
        self._selector = selectors.DefaultSelector()
        self._radio: Radio | None = None
        self._judge = Judge({}, limits, time.monotonic())
        self._peers: list[int] = []
        self._kind = Kind.BEAT
        self._reason = ""
        self._is_over = False
        self._state = State.UNKNOWN
        self._stopped_since_s: float | None = None
        self._unheeded: set[int] = set()

    def serve(self) -> None:
        """Watch until the rank leaves or dies; then say so."""
        self._selector.register(self._channel, selectors.EVENT_READ, self._hear_rank)
        if self._guarded.pidfd is not None:
            self._selector.register(self._guarded.pidfd, selectors.EVENT_READ, lambda: None)
        look_s = beat_s = time.monotonic()
        while not self._is_over:
            self._wait_until(look_s)
            now_s = time.monotonic()
            if self._guarded.has_ended():
                self._hear_rank()  # its last words come first
                self._end(Kind.DIED)
            elif now_s >= look_s:
                look_s = now_s + LOOK_S
                self._look(now_s)
                if now_s >= beat_s:
                    beat_s = now_s + BEAT_S
                    self._tell(self._kind, self._peers)
        self._say_farewell()

    def _wait_until(self, moment_s: float) -> None:
        for key, _ in self._selector.select(max(moment_s - time.monotonic(), 0.0)):
            key.data()

    # --- our rank ------------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        self._state = self._guarded.state()
        if self._state is not State.STOPPED:
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = now_s
        self._report(self._judge.tick(self._state, self._board.own[0], now_s))

    def _hear_rank(self) -> None:
        try:
            while piece := self._channel.recv(1 << 16):
                for frame in self._frames.feed(piece):
                    self._obey(frame)
        except OSError:
            return  # that was all for now
        # The rank has lost its end, by exec or by closing what it does not know. It may live.
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._channel)

    def _obey(self, frame: Frame) -> None:
        match frame.word:
            case Word.CONNECT:
                self._connect(frame.payload)
            case Word.FAIL:
                self._kind = Kind.FAILED
                self._reason = frame.payload.decode()
                self._tell(self._kind, self._peers)
            case Word.LEAVE:
                self._end(Kind.LEFT)

    def _connect(self, addresses: bytes) -> None:
        all_of_us = [
            Address.decode(addresses[start : start + ADDRESS_BYTES])
            for start in range(0, len(addresses), ADDRESS_BYTES)
        ]
        places = {rank: address.place for rank, address in enumerate(all_of_us)}
        del places[self._rank]
        self._peers = list(places)
        self._radio = Radio(self._bound, self._rank, all_of_us)
        self._judge = Judge(places, self._limits, time.monotonic())
        self._selector.register(self._bound, selectors.EVENT_READ, self._hear_peers)
        self._tell(self._kind, self._peers)

    def _end(self, kind: Kind) -> None:
        """Note how the rank has ended; what it has said itself counts more."""
        self._is_over = True
        if self._kind is Kind.BEAT:
            self._kind = kind

    def _report(self, findings: list[Finding]) -> None:
        for finding in findings:
            if isinstance(finding, Loss):
                frame = Frame(Word.LOSS, finding.encode())
            else:
                frame = Frame(Word.SAY, finding.encode())
            with contextlib.suppress(OSError):  # the rank is gone, or has long not listened
                self._channel.send(frame.encode())

    # --- the others ----------------------------------------------------------------------------

    def _tell(self, kind: Kind, peers: Iterable[int]) -> None:
        if self._radio is None:
            return
        since_s = self._stopped_since_s
        self._radio.send(
            kind,
            peers,
            progress=self._board.own[0],
            state=self._state,
            stopped_s=0.0 if since_s is None else time.monotonic() - since_s,
            reason=self._reason,
        )

    def _hear_peers(self) -> None:
        assert self._radio is not None
        time.sleep(NAP_S)
        for message in self._radio.receive():
            self._report(self._judge.hear(message))
            self._board.write(self._judge.last(message.rank), time.monotonic())
            self._heed(message)

    def _heed(self, message: Message) -> None:
        if message.kind.is_ending:
            self._tell(Kind.ACKNOWLEDGED, [message.rank])
        if message.kind is not Kind.BEAT:
            self._unheeded.discard(message.rank)

    def _say_farewell(self) -> None:
        """Repeat the last message until everybody who listens has acknowledged it."""
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not self._bound:  # a rank that has ended would wake us for ever
                self._selector.unregister(key.fileobj)
        deadline_s = time.monotonic() + FAREWELL_S
        self._unheeded = self._judge.listeners()
        self._tell(self._kind, self._peers)
        again_s = time.monotonic() + REPEAT_S
        while self._unheeded and time.monotonic() < deadline_s:
            self._wait_until(again_s)
            if time.monotonic() >= again_s:
                again_s += REPEAT_S
                self._tell(self._kind, self._unheeded)


def main(words: Sequence[str]) -> None:
    """Serve the rank whose numbers, open files and limits these are; file -1 is missing."""
    # Only its rank's end ends it: a signal to all of a host must not keep it from telling.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    rank, world, pid, channel_file, bound_file, board_file, pidfd, stat = map(int, words[:8])
    channel = socket.socket(fileno=channel_file)
    try:
        Sentinel(
            rank,
            channel=channel,
            bound=socket.socket(fileno=bound_file),
            board=Board(board_file, world),
            guarded=Guarded(pid, None if pidfd < 0 else pidfd, None if stat < 0 else stat),
            limits=Limits(*map(float, words[8:])),
        ).serve()
    except Exception as error:
        with contextlib.suppress(OSError):
            channel.send(Frame(Word.SAY, f"the sentinel has failed: {error!r}".encode()).encode())
        raise
