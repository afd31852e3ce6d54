"""The sentinel: a process beside a rank that watches it and exchanges heartbeats with the others.

It ends when its rank does, by whatever signal, and outlives it by :data:`FAREWELL_S` at most: the
time that the others have to acknowledge the end. Once a peer is lost the rank cannot go on, and its
sentinel tells the others without waiting for the rank, which may be held up: a peer that was only
frozen must not take the others' leaving for a regular end.
"""

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Iterable, Sequence

from bytelane.runtime.liveness.address import Address
from bytelane.runtime.liveness.failure_detector import FailureDetector, Finding, Limits, Loss
from bytelane.runtime.liveness.frames import Frame, FrameKind, Frames
from bytelane.runtime.liveness.message import Fault, Kind, Message, State
from bytelane.runtime.liveness.process_state import WatchedProcess
from bytelane.runtime.liveness.shared_memory import FINISHED, LAUNCHED, PULSE, SharedPage
from bytelane.runtime.liveness.tcp_probe import TcpProbes
from bytelane.runtime.liveness.udp import UdpSocket

LOOK_S = 0.25
BEAT_S = 1.0
NAP_S = 0.05  # then receive several datagrams at once: waking up costs more than receiving
REPEAT_S = 0.2
FAREWELL_S = 1.5


class Sentinel:
    """Serves one rank. Until it knows a peer it only waits for the rank's end."""

    def __init__(
        self,
        rank: int,
        world: int,
        *,
        channel: socket.socket,
        udp: UdpSocket,
        board: SharedPage,
        guarded: WatchedProcess,
        limits: Limits,
    ) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._udp = udp
        self._board = board
        self._guarded = guarded
        self._frames = Frames()
        self._selector = selectors.DefaultSelector()
        self._detector = FailureDetector(rank, limits, time.monotonic())
        self._tcp_probes = TcpProbes()
        self._rank = rank
        self._world = world
        self._kind = Kind.BEAT
        self._failure: Loss | None = None
        self._is_over = False
        self._state = State.UNKNOWN
        self._stopped_since_s: float | None = None
        self._unheeded: set[int] = set()

    def serve(self) -> None:
        """Watch until the rank leaves or dies; then tell the other sentinels."""
        self._hear_rank()  # so that the peers are known when they are heard
        self._selector.register(self._channel, selectors.EVENT_READ, self._hear_rank)
        self._selector.register(self._udp, selectors.EVENT_READ, self._hear_peers)
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
                    self._tell(self._kind, self._udp.peers)
                    self._udp.introduce(self._detector.unheard())
                    self._knock()
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
        own = self._board.own
        own[PULSE] += 1
        self._report(self._detector.tick(self._state, own[LAUNCHED], now_s, own[FINISHED]))

    def _knock(self) -> None:
        for rank in self._detector.doubtful():
            answer = self._tcp_probes.probe(rank, self._udp.peers[rank])
            self._report(self._detector.hear_answer(rank, answer))

    def _hear_rank(self) -> None:
        try:
            while piece := self._channel.recv(1 << 16):
                for frame in self._frames.feed(piece):
                    self._obey(frame)
        except OSError:
            return  # nothing more to read for now
        # The rank has closed its end, by exec or with files that it does not know. It may live.
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._channel)

    def _obey(self, frame: Frame) -> None:
        match frame.word:
            case FrameKind.CONNECT:
                self._meet(int.from_bytes(frame.payload[:4], "big"), frame.payload[4:])
            case FrameKind.FAIL:
                self._fail(Loss.decode(frame.payload))
            case FrameKind.LEAVE:
                self._end(Kind.LEFT)

    def _meet(self, rank: int, text: bytes) -> None:
        address = Address.decode(text)
        if rank < self._world and self._udp.meet(rank, address):
            self._detector.add(rank, address.place, is_near=self._udp.is_near(rank))
            self._tcp_probes.forget(rank)
            self._udp.introduce([rank])
            self._tell(self._kind, [rank])

    def _fail(self, failure: Loss) -> None:
        """Record why the rank cannot go on, and tell the others; the first reason stays."""
        if self._failure is None:
            self._failure = failure
            self._kind = Kind.FAILED
            self._tell(self._kind, self._udp.peers)

    def _end(self, kind: Kind) -> None:
        """Record how the rank has ended, unless it has reported a failure itself."""
        self._is_over = True
        if self._kind is Kind.BEAT:
            self._kind = kind

    def _report(self, findings: list[Finding]) -> None:
        for finding in findings:
            if isinstance(finding, Loss):
                if self._failure is not None:
                    continue  # our rank has failed by itself, and that is why others give up
                frame = Frame(FrameKind.LOSS, finding.encode())
                self._fail(finding)
            else:
                frame = Frame(FrameKind.SAY, finding.encode())
            with contextlib.suppress(OSError):  # the rank is gone, or has not read for long
                self._channel.send(frame.encode())

    # --- the others ----------------------------------------------------------------------------

    def _tell(self, kind: Kind, peers: Iterable[int]) -> None:
        since_s, failure = self._stopped_since_s, self._failure
        self._udp.send(
            kind,
            peers,
            progress=self._board.own[LAUNCHED],
            state=self._state,
            stopped_s=0.0 if since_s is None else time.monotonic() - since_s,
            reason=failure.text if failure else "",
            fault=failure.fault if failure else Fault.FAILED,
            about=failure.rank if failure else self._rank,
        )

    def _hear_peers(self) -> None:
        time.sleep(NAP_S)
        for message in self._udp.receive():
            if message.kind is Kind.HELLO:
                with contextlib.suppress(ValueError):
                    self._meet(message.rank, message.reason.encode())
                continue
            self._report(self._detector.hear(message))
            self._board.write(self._detector.last(message.rank), time.monotonic())
            self._tcp_probes.forget(message.rank)
            self._heed(message)

    def _heed(self, message: Message) -> None:
        if message.kind.is_ending:
            self._tell(Kind.ACKNOWLEDGED, [message.rank])
        if message.kind is not Kind.BEAT:
            self._unheeded.discard(message.rank)

    def _say_farewell(self) -> None:
        """Repeat the last message until all listening peers have acknowledged it."""
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not self._udp:  # a rank that has ended would wake us for ever
                self._selector.unregister(key.fileobj)
        deadline_s = time.monotonic() + FAREWELL_S
        self._unheeded = self._detector.listeners()
        self._tell(self._kind, self._udp.peers)
        again_s = time.monotonic() + REPEAT_S
        while self._unheeded and time.monotonic() < deadline_s:
            self._wait_until(again_s)
            if time.monotonic() >= again_s:
                again_s += REPEAT_S
                self._tell(self._kind, self._unheeded)


def main(words: Sequence[str]) -> None:
    """Serve the rank whose numbers, open files, limits and address these are; -1: no such file."""
    # Only its rank's end ends it: a signal to all processes of a host must not silence it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    rank, world, pid, channel_file, bound_file, board_file, pidfd, stat = map(int, words[:8])
    channel = socket.socket(fileno=channel_file)
    try:
        address = Address.decode(" ".join(words[11:]).encode())
        Sentinel(
            rank,
            world,
            channel=channel,
            udp=UdpSocket(socket.socket(fileno=bound_file), rank, address),
            board=SharedPage(board_file, world),
            guarded=WatchedProcess(pid, None if pidfd < 0 else pidfd, None if stat < 0 else stat),
            limits=Limits(*map(float, words[8:11])),
        ).serve()
    except Exception as error:
        with contextlib.suppress(OSError):
            channel.send(
                Frame(FrameKind.SAY, f"the sentinel has failed: {error!r}".encode()).encode()
            )
        raise
