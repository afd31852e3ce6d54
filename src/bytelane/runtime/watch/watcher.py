"""The rank's side: tell the sentinel things, hear from it who is lost."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from bytelane.errors import InputError, PeerError, PeerFailed, PeerFrozen, PeerLost
from bytelane.runtime.watch.address import Address
from bytelane.runtime.watch.frames import Frame, Frames, Word
from bytelane.runtime.watch.judge import Fault, Limits, Loss
from bytelane.runtime.watch.launch import launch
from bytelane.runtime.watch.message import REASON_BYTES
from bytelane.runtime.watch.sentinel import BEAT_S, FAREWELL_S
from bytelane.runtime.watch.standing import Standing

OnLoss = Callable[[PeerError], None]
Say = Callable[[str], None]

_ERRORS = {Fault.LOST: PeerLost, Fault.FROZEN: PeerFrozen, Fault.FAILED: PeerFailed}
_DEFAULTS = Limits()


class Watcher:
    """Knows how the other ranks are. Left open at the end, it tells them that this rank has died.

    ``host`` is this host's address as other ranks reach it. ``say`` gets lines for people, in a
    thread of ours that sleeps until there is something to tell. A forked child of the rank may hold
    this object and even close it: that does nothing.
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
        self._callbacks: list[OnLoss] = []
        self._changed = threading.Condition()
        self._is_connected = False
        self._is_closing = False
        self._is_over = False
        self._pid = os.getpid()
        self._process, self._channel, self._board, self._address = launch(rank, world, host, limits)
        self._thread = threading.Thread(target=self._listen, name="bytelane-watch", daemon=True)
        self._thread.start()

    @property
    def address(self) -> bytes:
        """For the other ranks; always :data:`~.address.ADDRESS_BYTES` long."""
        return self._address.encode()

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Begin to watch: the addresses of all ranks, in their order, ours too."""
        if self._is_connected:
            raise InputError("the ranks know each other already; connect only once")
        if len(addresses) != self._world:
            raise InputError(f"{len(addresses)} addresses for {self._world} ranks")
        if addresses[self._rank] != self.address:
            raise InputError(f"address {self._rank} is not that of rank {self._rank}")
        for rank, address in enumerate(addresses):
            try:
                Address.decode(address)
            except ValueError:
                raise InputError(f"the address of rank {rank} cannot be read") from None
        self._is_connected = True
        self._tell(Word.CONNECT, b"".join(addresses))

    # --- what is known of the others -----------------------------------------------------------

    def on_loss(self, callback: OnLoss) -> None:
        """Have it called once, when a peer is lost: in our thread, or here if that was before."""
        with self._changed:
            if self._loss is None:
                self._callbacks.append(callback)
                return
        callback(self._loss)

    def loss(self, wait_s: float = 0.0) -> PeerError | None:
        """Return the loss, if there is one within that time.

        A transfer that fails does so before the sentinels have agreed on the reason. Ask here, and
        only if nothing comes, report the failure as one's own.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._loss or self._is_over, wait_s)
            return self._loss

    def behind(self) -> list[Standing]:
        """Return the peers that have launched least, if that is less than we have.

        What is known of them is about a second old, but of those that are not heard of any more.
        """
        now_s = time.monotonic()
        rows = {r: self._board.read(r) for r in range(self._world) if r != self._rank}
        peers = [
            Standing(rank, row.progress, row.state, row.kind, row.silent_s(now_s))
            for rank, row in rows.items()
        ]
        least = min((peer.progress for peer in peers), default=0)
        is_least = least < self._board.own[0]
        return [p for p in peers if p.is_quiet or (is_least and p.progress == least)]

    # --- what the others are told --------------------------------------------------------------

    def progress(self, count: int) -> None:
        """Say how many operations this rank has launched; ranks must count the same ones.

        Costs a write to memory.
        """
        self._board.own[0] = count

    def report_failure(self, message: str) -> None:
        """Tell the others why this rank cannot go on; if a peer is lost, they know why already."""
        if self._loss is None:
            self._tell(Word.FAIL, message.encode(errors="replace")[:REASON_BYTES])

    def close(self) -> None:
        """Leave in order, and end the sentinel; that waits until the others have heard of it."""
        self._is_closing = True
        self._tell(Word.LEAVE)
        if threading.current_thread() is self._thread:
            return  # from a callback: the thread goes on and ends by itself
        self._thread.join(FAREWELL_S + 0.5)
        if self._thread.is_alive():
            self._process.kill()
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
            self._thread.join()

    def _tell(self, word: Word, payload: bytes = b"") -> None:
        if os.getpid() != self._pid:
            return
        with self._changed, contextlib.suppress(OSError):  # its end is noticed where we listen
            self._channel.sendall(Frame(word, payload).encode())

    # --- in our thread -------------------------------------------------------------------------

    def _listen(self) -> None:
        frames = Frames()
        with contextlib.suppress(OSError):
            while piece := self._channel.recv(1 << 16):
                for frame in frames.feed(piece):
                    self._take(frame)
        self._process.wait()
        self._board.detach()
        with self._changed:
            self._channel.close()
            self._is_over = True
            self._changed.notify_all()
        if not self._is_closing:
            self._line("this rank's sentinel has ended; from now on lost ranks go unnoticed")

    def _take(self, frame: Frame) -> None:
        if frame.word is Word.SAY:
            self._line(frame.payload.decode())
            return
        loss = Loss.decode(frame.payload)
        error = _ERRORS[loss.fault](loss.text, loss.rank)
        with self._changed:
            self._loss = error
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            try:
                callback(error)
            except Exception as raised:  # the others must hear of it all the same
                self._line(f"what was to be done about a lost rank raised {raised!r}")

    def _line(self, text: str) -> None:
        with contextlib.suppress(Exception):  # nobody reads what a rank prints: go on listening
            self._say(text)
