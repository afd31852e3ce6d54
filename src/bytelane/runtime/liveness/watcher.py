"""The watcher: a rank's connection to its sentinel, which reports lost peers."""

import contextlib
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from bytelane.errors import (
    InputError,
    PeerError,
    PeerFailed,
    PeerFrozen,
    PeerLost,
    TrainingError,
)
from bytelane.runtime.liveness.address import Address
from bytelane.runtime.liveness.failure_detector import Limits, Loss
from bytelane.runtime.liveness.frames import Frame, FrameKind, Frames
from bytelane.runtime.liveness.launch import Post
from bytelane.runtime.liveness.message import REASON_BYTES, Fault, Kind
from bytelane.runtime.liveness.peer_status import PeerStatus
from bytelane.runtime.liveness.sentinel import BEAT_S, FAREWELL_S
from bytelane.runtime.liveness.shared_memory import FINISHED, LAUNCHED, PULSE, SharedPage

OnLoss = Callable[[PeerError], None]
Say = Callable[[str], None]

_ERRORS = {Fault.LOST: PeerLost, Fault.FROZEN: PeerFrozen, Fault.FAILED: PeerFailed}
_DEFAULTS = Limits()
TICK_S = 1.0
# Seconds without a pulse, which a running sentinel gives 4 times per second: it is stopped.
MISSED = 3
MISSED_AT_START = 20
# A sentinel that ends this often within SENTINELS_WITHIN_S is not replaced any more.
MOST_SENTINELS = 5
SENTINELS_WITHIN_S = 60.0


class Watcher:
    """Knows the state of the other ranks. Unless it is closed, they learn that this rank has died.

    ``host`` is this host's address as other ranks reach it. ``say`` gets lines to print, in a
    thread of ours that wakes up once per second: a sentinel that has ended, or is stopped, is
    replaced. A forked child of the rank may hold this object and even close it: that does nothing.
    """

    def __init__(
        self, rank: int, world: int, *, host: str, say: Say, limits: Limits = _DEFAULTS
    ) -> None:
        if not 0 <= rank < world:
            raise InputError(f"there is no rank {rank} among {world}")
        if limits.frozen_s <= 0 or not 2 * BEAT_S <= limits.silent_s < limits.lost_s:
            raise InputError(
                f"{limits} cannot be: frozen_s must be more than 0, silent_s at least "
                f"{2 * BEAT_S:g} s (two heartbeats), and lost_s more than silent_s"
            )
        self._rank = rank
        self._world = world
        self._say = say
        self._loss: PeerError | None = None
        self._failure: Loss | None = None
        self._addresses: dict[int, bytes] = {}
        self._callbacks: list[OnLoss] = []
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_over = False
        self._pid = os.getpid()
        self._post = Post(rank, world, host, limits)
        self._board = self._post.board
        try:
            self._begin()
        except TrainingError:
            self._post.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="bytelane-watch", daemon=True)
        self._thread.start()
        _watchers.add(self)

    @property
    def address(self) -> bytes:
        """The sentinel's address, for the other ranks; :data:`~.address.ADDRESS_BYTES` long."""
        return self._post.address.encode()

    def connect(self, rank: int, address: bytes) -> None:
        """Begin to watch a peer. One of two ranks has to call this for both to know each other."""
        if not 0 <= rank < self._world or rank == self._rank:
            raise InputError(f"rank {rank} is no peer of rank {self._rank} among {self._world}")
        try:
            Address.decode(address)
        except ValueError:
            raise InputError(f"the address of rank {rank} cannot be read") from None
        self._addresses[rank] = address
        self._tell(_connect_frame(rank, address))

    # --- state of the other ranks --------------------------------------------------------------

    def on_loss(self, callback: OnLoss) -> None:
        """Call ``callback`` once, when a peer is lost: in our thread, or here if one already is."""
        with self._changed:
            if self._loss is None:
                self._callbacks.append(callback)
                return
        callback(self._loss)

    def loss(self, wait_s: float = 0.0) -> PeerError | None:
        """Return the loss, if there is one within that time.

        A transfer fails before the sentinels have agreed on the reason. So call this first, and
        report the failure as this rank's own only if it returns None.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._loss or self._is_over, wait_s)
            return self._loss

    def left(self, for_s: float = 0.0) -> list[int]:
        """Return the peers that have ended in order, at least so long ago."""
        now_s = time.monotonic()
        rows = {r: self._board.read(r) for r in range(self._world) if r != self._rank}
        ended = {rank: row for rank, row in rows.items() if row.kind is Kind.LEFT}
        return [rank for rank, row in ended.items() if (row.silent_s(now_s) or 0.0) >= for_s]

    def behind(self) -> list[PeerStatus]:
        """Return the peers that have launched least, if less than this rank, and the silent ones.

        Their status is about 1 s old, or older if they are silent.
        """
        now_s = time.monotonic()
        rows = {r: self._board.read(r) for r in range(self._world) if r != self._rank}
        peers = [
            PeerStatus(rank, row.progress, row.state, row.kind, row.silent_s(now_s))
            for rank, row in rows.items()
        ]
        least = min((peer.progress for peer in peers), default=0)
        is_least = least < self._board.own[LAUNCHED]
        return [
            p
            for p in peers
            if p.is_quiet or p.silent_s is None or (is_least and p.progress == least)
        ]

    # --- reports to the other ranks ------------------------------------------------------------

    def progress(self, count: int) -> None:
        """Set how many operations this rank has launched; ranks must count the same ones.

        Costs one write to memory.
        """
        self._board.own[LAUNCHED] = count

    def finished(self, count: int) -> None:
        """Set how many of them are over: all peers have done their part of those."""
        self._board.own[FINISHED] = count

    def report_failure(self, message: str) -> None:
        """Tell the others why this rank cannot go on, unless they know of a loss already."""
        if self._loss is None and self._failure is None:
            text = message.encode(errors="replace")[:REASON_BYTES].decode(errors="ignore")
            self._failure = Loss(Fault.FAILED, self._rank, text)
            self._tell(Frame(FrameKind.FAIL, self._failure.encode()))

    def give_up(self, loss: PeerError) -> None:
        """Tell the others that a peer is lost, which no sentinel has reported."""
        if self._loss is None and self._failure is None:
            fault = next(f for f, kind in _ERRORS.items() if isinstance(loss, kind))
            self._failure = Loss(fault, loss.rank, str(loss))
            self._tell(Frame(FrameKind.FAIL, self._failure.encode()))

    def close(self) -> None:
        """Leave in order, and end the sentinel; waits until the others have acknowledged it."""
        if os.getpid() != self._pid:
            return
        self._is_closing = True
        self._tell(Frame(FrameKind.LEAVE))
        if threading.current_thread() is self._thread:
            return  # from a callback: the thread goes on and ends by itself
        self._thread.join(FAREWELL_S + 0.5)
        if self._thread.is_alive():
            self._process.kill()
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
            self._thread.join()

    def _tell(self, frame: Frame) -> None:
        if os.getpid() != self._pid:
            return
        with self._changed, contextlib.suppress(OSError):  # _listen notices a sentinel's end
            self._channel.sendall(frame.encode())

    def disown(self) -> None:
        """Do nothing any more, in a forked child: its copied lock may be held by a lost thread."""
        self._changed = threading.Condition()
        self._callbacks = []
        self._is_over = True
        self._channel.close()
        self._post.close_in_child()

    # --- in our thread -------------------------------------------------------------------------

    def _begin(self) -> None:
        greeting = [_connect_frame(rank, one) for rank, one in self._addresses.items()]
        if self._failure is not None:
            greeting.append(Frame(FrameKind.FAIL, self._failure.encode()))
        self._process, self._channel = self._post.start(b"".join(f.encode() for f in greeting))
        self._channel.settimeout(TICK_S)
        self._pulse = Pulse(self._board)

    def _serve(self) -> None:
        began_s: deque[float] = deque(maxlen=MOST_SENTINELS)
        while True:
            began_s.append(time.monotonic())
            self._listen()
            self._process.wait()
            is_hopeless = began_s[0] > time.monotonic() - SENTINELS_WITHIN_S
            if self._is_closing or self._loss or (is_hopeless and len(began_s) == MOST_SENTINELS):
                break
            if not self._replace():
                break
        with self._changed:
            self._post.close()
            self._channel.close()
            self._is_over = True
            self._changed.notify_all()
        if not self._is_closing:
            self._line("this rank's sentinel has ended; from now on lost ranks go unnoticed")

    def _replace(self) -> bool:
        """Start another sentinel, unless this rank leaves just now; tell whether it runs."""
        with self._changed:
            if self._is_closing:
                return False
            self._channel.close()
            try:
                self._begin()
            except TrainingError:
                return False
        self._line("this rank's sentinel was lost; another one has taken its place")
        return True

    def _listen(self) -> None:
        frames = Frames()
        with contextlib.suppress(OSError):
            while True:
                try:
                    if not (piece := self._channel.recv(1 << 16)):
                        return
                except TimeoutError:
                    self._look_after()
                    continue
                for frame in frames.feed(piece):
                    self._take(frame)

    def _look_after(self) -> None:
        """End a sentinel that is stopped; close the connections of TCP probes."""
        if self._pulse.is_gone():
            self._process.kill()
        with contextlib.suppress(OSError):
            while True:
                self._post.door.accept()[0].close()

    def _take(self, frame: Frame) -> None:
        if frame.word is FrameKind.SAY:
            self._line(frame.payload.decode())
            return
        loss = Loss.decode(frame.payload)
        error = _ERRORS[loss.fault](loss.text, loss.rank)
        with self._changed:
            if self._loss is not None:
                return
            self._loss = error
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            try:
                callback(error)
            except Exception as raised:  # the other callbacks must still be called
                self._line(f"a callback for a lost rank raised {raised!r}")

    def _line(self, text: str) -> None:
        with contextlib.suppress(Exception):  # the rank's output may be closed: go on listening
            self._say(text)


class Pulse:
    """Tells, once per second, whether a sentinel still looks at its rank."""

    def __init__(self, board: SharedPage) -> None:
        self._board = board
        self._last = board.own[PULSE]
        self._has_begun = False
        self._missed = 0

    def is_gone(self) -> bool:
        now = self._board.own[PULSE]
        if now != self._last:
            self._last, self._has_begun, self._missed = now, True, 0
            return False
        self._missed += 1
        return self._missed >= (MISSED if self._has_begun else MISSED_AT_START)


def _connect_frame(rank: int, address: bytes) -> Frame:
    return Frame(FrameKind.CONNECT, rank.to_bytes(4, "big") + address)


# A forked child of a rank has a copy of all its watchers.
_watchers: "weakref.WeakSet[Watcher]" = weakref.WeakSet()


def _disown_all() -> None:
    for watcher in list(_watchers):
        watcher.disown()


os.register_at_fork(after_in_child=_disown_all)
