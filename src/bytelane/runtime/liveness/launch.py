"""Start a sentinel process, with the sockets, shared memory and files that it needs."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import bytelane
from bytelane.errors import TrainingError
from bytelane.runtime.liveness.address import Address
from bytelane.runtime.liveness.failure_detector import Limits
from bytelane.runtime.liveness.message import TOKEN_BYTES
from bytelane.runtime.liveness.shared_memory import SharedPage, size_bytes
from bytelane.runtime.liveness.udp import bind_both

# Without site-packages and the user's settings of Python: 1/2 of the start-up, 2/3 of the memory.
_ISOLATED = ["-I", "-S", "-c"]
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from bytelane.runtime.liveness.sentinel import main; main(sys.argv[2:])"
)
_MISSING = -1


class Post:
    """Sockets and shared memory that a rank keeps open for its sentinel and its successors.

    A new sentinel has the address of the last one, and receives the datagrams sent meanwhile. No
    data is ever sent on ``door``: that it accepts connections shows that the rank exists.
    """

    def __init__(self, rank: int, world: int, host: str, limits: Limits) -> None:
        try:
            self.bound, self.door = bind_both(host)
        except OSError as error:
            raise TrainingError(
                f"cannot listen at {host}: {error.strerror}; give an address of this host"
            ) from None
        self._memory = _memory_file()
        self._memory.truncate(size_bytes(world))
        self.board = SharedPage(self._memory.fileno(), world)
        port = self.bound.getsockname()[1]
        self.address = Address(host, port, os.getpid(), os.urandom(TOKEN_BYTES))
        self._numbers = [rank, world, os.getpid()]
        self._limits = limits

    def start(self, greeting: bytes) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start a sentinel that reads this greeting first; return its process and the channel."""
        with contextlib.ExitStack() as handed_over:
            ours, theirs = socket.socketpair()
            handed_over.enter_context(theirs)
            files = [theirs.fileno(), self.bound.fileno(), self._memory.fileno()]
            for opened in (_open_pidfd(), _open_stat()):
                if opened != _MISSING:
                    handed_over.callback(os.close, opened)
                files.append(opened)
            words = [*self._numbers, *files, *self._limits, self.address.encode().decode().strip()]
            try:
                ours.sendall(greeting)
                process = _start([str(word) for word in words], files)
            except OSError as error:
                ours.close()
                raise TrainingError(f"cannot start a sentinel: {error.strerror}") from None
            return process, ours

    def close(self) -> None:
        """Close everything; the board stays readable."""
        self.board.detach()
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close, in a forked child, the sockets by which others see that the rank exists."""
        for opened in (self.bound, self.door, self._memory):
            opened.close()


def _start(words: list[str], files: list[int]) -> subprocess.Popen[bytes]:
    root = str(Path(bytelane.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, *_ISOLATED, _BOOT, root, *words],
        pass_fds=[file for file in files if file != _MISSING],
        # It outlives its rank a little; a reader of the rank's output must not wait for its end.
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for the rank
    )


def _memory_file() -> IO[bytes]:
    """Return an anonymous file."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("bytelane-watch"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _open_pidfd() -> int:
    try:
        return os.pidfd_open(os.getpid())
    except (AttributeError, OSError):  # not Linux, or an old one
        return _MISSING


def _open_stat() -> int:
    try:
        return os.open("/proc/self/stat", os.O_RDONLY)
    except OSError:
        return _MISSING
