"""Ranks that are watched: processes of their own, which do what a test tells them.

As a script it is such a rank: it reads a word and its arguments from each line, and prints what its
watcher says.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bytelane.errors import PeerError
from bytelane.runtime.liveness import launch
from bytelane.runtime.liveness.failure_detector import Limits
from bytelane.runtime.liveness.peer_status import waiting_line
from bytelane.runtime.liveness.watcher import Watcher
from process_lookup import runs

PATIENCE_S = 20.0
# For what need not take as long as it takes a user.
HOLD_S = 5
QUICK = Limits(frozen_s=0.5, silent_s=2.0, lost_s=4.0)


class Rank:
    """One of them, as the test sees it."""

    def __init__(self, rank: int, world: int, limits: Limits, *options: str) -> None:
        self.heard: list[tuple[float, str]] = []
        self.sentinel = 0
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(rank), str(world), *map(str, limits), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def await_start(self) -> None:
        self.address = self.expect("address ").split()[1]
        (self.sentinel,) = children_of(self.pid)

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> float:
        """Send a signal; return when that was."""
        os.kill(self.pid, number)
        return time.monotonic()

    def expect(self, text: str, patience_s: float = PATIENCE_S) -> str:
        """Return the first line with this text in it, when it comes."""
        with self._news:
            self._news.wait_for(lambda: self.lines(text), patience_s)
        found = self.lines(text)
        assert found, f"no {text!r}, but {self.lines()}"
        return found[0]

    def when(self, text: str) -> float:
        """Return when a line with this text came."""
        self.expect(text)
        return next(moment for moment, line in self.heard if text in line)

    def lines(self, text: str = "") -> list[str]:
        return [line for _, line in self.heard if text in line]

    def losses(self) -> list[str]:
        return self.lines("loss ")

    def complaints(self) -> list[str]:
        """Everything that the watcher has said without being asked."""
        return self.lines("line ") + self.losses()

    def dismiss(self) -> None:
        """Let it come to the end of its script."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)

    def end(self) -> int:
        """See it end, or make it; return how."""
        self.dismiss()
        try:
            return self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.heard.append((time.monotonic(), line.rstrip("\n")))
                self._news.notify_all()


@contextlib.contextmanager
def ranks(world: int, limits: Limits = QUICK, *options: str) -> Iterator[list[Rank]]:
    """Ranks that know each other; afterwards none is left, and no sentinel."""
    started: list[Rank] = []
    try:
        started += (Rank(rank, world, limits, *options) for rank in range(world))
        for one in started:
            one.await_start()
        for one in started:
            one.tell("connect", *(other.address for other in started))
        for one in started:
            one.expect("connected")
        yield started
    finally:
        for one in started:
            one.dismiss()
        for one in started:
            one.end()
        await_true(lambda: not any(runs(one.sentinel) for one in started), 2.0)
        left = [one.sentinel for one in started if runs(one.sentinel)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left


def children_of(pid: int) -> list[int]:
    """Those that any of its threads has started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def await_true(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + patience_s
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds


# --- the script of a rank ------------------------------------------------------------------------


def say(*words: object) -> None:
    print(" ".join(map(str, words)) + "\n", end="", flush=True)


def say_loss(error: PeerError) -> None:
    say("loss", type(error).__name__, error.rank, error)


def hold_interpreter(how: str) -> None:
    """Be in C calls that do not let go of the interpreter, for longer than silence may last."""
    if how == "asleep":
        ctypes.PyDLL(None).sleep(HOLD_S)
    else:
        until = time.monotonic() + HOLD_S
        while time.monotonic() < until:
            sum(range(20_000_000))


def fork() -> None:
    """Leave a child that holds everything open, closes the watcher, and stays."""
    if os.fork() == 0:
        watcher.report_failure("by a child")
        watcher.close()
        say("child", os.getpid())
        time.sleep(PATIENCE_S)
        os._exit(0)


def heard_of_all() -> bool:
    peers = set(range(int(numbers[1]))) - {int(numbers[0])}
    return all(watcher._board.read(rank).heard_s for rank in peers)


def obey(word: str, *words: str) -> None:
    match word:
        case "connect":
            for rank, address in enumerate(words):
                if rank != int(numbers[0]):
                    watcher.connect(rank, bytes.fromhex(address))
            await_true(heard_of_all)
            say("connected")
        case "progress":
            watcher.progress(int(words[0]))
        case "fail":
            watcher.report_failure(" ".join(words))
        case "behind":
            say(waiting_line(watcher.behind(), 60.0))
        case "hold":
            hold_interpreter(words[0])
        case "fork":
            fork()
        case "close":
            watcher.close()
        case "exit":
            os._exit(0)


if __name__ == "__main__":
    numbers, options = sys.argv[1:6], sys.argv[6:]
    if "bare" in options:  # as where the system can do less
        launch._open_pidfd = launch._open_stat = lambda: launch._MISSING
    watcher = Watcher(
        int(numbers[0]),
        int(numbers[1]),
        host="127.0.0.1",
        say=lambda line: say("line", line),
        limits=Limits(*map(float, numbers[2:])),
    )
    watcher.on_loss(say_loss)
    say("address", watcher.address.hex())
    for line in sys.stdin:
        obey(*line.split())
        say(f"done {line.split()[0]}")
    watcher.close()
