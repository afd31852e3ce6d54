"""Run one command in every host of a lab: output, exit codes, timeout, stop."""

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from bytelane.errors import InputError, LabError, LabTimeout
from bytelane.lab.control import Control
from bytelane.lab.lines import Lines
from bytelane.lab.messages import Signal, Start
from bytelane.terminal import relay
from bytelane.units import LONGEST_S
from bytelane.values import as_number

Stream = Literal["out", "err"]
Output = Callable[[int, Stream, str], None]

# Wait for output after the last rank has ended: a daemon may hold the pipe open.
DRAIN_S = 1.0


def print_line(rank: int, stream: Stream, line: str) -> None:
    """Print a line of a rank to the same stream, with the rank in front."""
    file = sys.stdout if stream == "out" else sys.stderr
    relay(f"[{rank}] {line}\n", file=file)  # one write: others print too


def require_timeout(seconds: float) -> None:
    """Refuse a timeout that is not positive, or too long."""
    if not 0 < as_number(seconds, "timeout") <= LONGEST_S:
        raise InputError(
            f"a timeout of {seconds:g} s is not possible; use more than 0 and at most "
            f"{LONGEST_S:g} s"
        )


class Run:
    """Ranks that live and die together: when one fails, the others are stopped.

    A thread of its own reads their output, also while no caller waits.
    """

    def __init__(self, control: Control, output: Output, grace_s: float) -> None:
        self.codes: dict[int, int] = {}
        """Exit code by rank, the first to end first; 128 and more: by a signal, as in a shell."""
        self._control = control
        self._output = output
        self._grace_s = grace_s
        self._processes: dict[int, int] = {}
        self._error: BaseException | None = None
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()
        woken, self._waker = socket.socketpair()
        self._listen(woken.detach(), lambda _: self._begin_to_stop())
        # Not the thread's own join(): in Python 3.11, interrupted by Ctrl-C, it forgets the thread.
        self._ended = threading.Event()
        self._ended.set()

    def start(self, starts: Sequence[Start]) -> None:
        """Start all ranks, or none."""
        self._ended.clear()
        try:
            for rank, start in enumerate(starts):
                self._start(rank, start)
        except BaseException:
            self._begin_to_stop()
            self._watch()
            raise
        threading.Thread(target=self._watch, name="bytelane-lab-run", daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        """That of the rank that failed first, 0 if no rank failed, None while they run."""
        if not self._ended.is_set():
            return None
        return next((code for code in self.codes.values() if code), 0)

    @property
    def is_stopping(self) -> bool:
        """Whether it has been stopped, or one rank has failed."""
        return self._kill_at is not None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until all have ended; return the exit code. At the timeout all are stopped."""
        try:
            ended = self._ended.wait(timeout_s)
        except BaseException:  # Ctrl-C
            self.stop()
            raise
        if not ended:
            self.stop()
            raise LabTimeout(f"the command did not end within {timeout_s:g} s, and was stopped")
        if self._error:
            raise self._error
        return self.exit_code or 0

    def stop(self) -> None:
        """Send SIGTERM to all ranks; kill those that have not ended after ``grace_s``."""
        with contextlib.suppress(OSError):  # closed: they have all ended meanwhile
            self._waker.send(b"!")
        self._ended.wait()

    def _start(self, rank: int, start: Start) -> None:
        readers, writers = zip(*(os.pipe() for _ in range(3)), strict=True)
        self._listen(readers[0], self._speaker(rank, "out"))
        self._listen(readers[1], self._speaker(rank, "err"))
        try:
            self._processes[rank] = self._control.ask(start, list(writers))
        except BaseException:
            os.close(readers[2])
            raise
        finally:
            for writer in writers:
                os.close(writer)
        self._listen(readers[2], lambda said: self._on_end(rank, said))

    def _watch(self) -> None:
        """Read until all ranks have ended and their output is complete."""
        until = float("inf")
        while self._processes or time.monotonic() < until:
            for key, _ in self._selector.select(self._patience_s(until)):
                self._hear(key.fd, key.data)
            self._end_the_stubborn()
            if not self._processes:
                # If only the waker is left, all output has been read.
                until = min(until, time.monotonic() + DRAIN_S * (len(self._selector.get_map()) > 1))
        for key in list(self._selector.get_map().values()):
            self._forget(key.fd)
        self._selector.close()
        self._waker.close()
        self._ended.set()

    def _patience_s(self, until: float) -> float | None:
        deadline = min(until, self._kill_at or until)
        return None if deadline == float("inf") else max(deadline - time.monotonic(), 0.0)

    def _listen(self, descriptor: int, on_bytes: Callable[[bytes], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, on_bytes)

    def _hear(self, descriptor: int, on_bytes: Callable[[bytes], None]) -> None:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            self._forget(descriptor)
        try:
            on_bytes(piece)
        except BaseException as error:
            self._output = lambda *_: None
            self._fail(error)

    def _forget(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _speaker(self, rank: int, stream: Stream) -> Callable[[bytes], None]:
        lines = Lines()

        def on_bytes(piece: bytes) -> None:
            for line in lines.feed(piece) if piece else lines.end():
                self._output(rank, stream, line)

        return on_bytes

    def _on_end(self, rank: int, said: bytes) -> None:
        if rank not in self._processes:
            return  # the end of the pipe after the message
        del self._processes[rank]
        if not said:
            self._fail(LabError("the lab was ended while a command was running in it"))
            return
        code = int(said)
        self.codes[rank] = code if code >= 0 else 128 - code
        if code:
            self._begin_to_stop()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._begin_to_stop()

    def _begin_to_stop(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s
            self._signal_all(signal.SIGTERM)

    def _end_the_stubborn(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = float("inf")
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(LabError):  # no supervisor, no processes
                self._control.ask(Signal(process, number))
