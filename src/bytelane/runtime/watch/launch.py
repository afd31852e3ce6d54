"""Start a sentinel, with everything open that it needs."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

import bytelane
from bytelane.errors import TrainingError
from bytelane.runtime.watch.address import Address
from bytelane.runtime.watch.board import Board, size_bytes
from bytelane.runtime.watch.judge import Limits
from bytelane.runtime.watch.message import TOKEN_BYTES
from bytelane.runtime.watch.radio import bind

# Neither site-packages nor the user's settings of Python: half the start, two thirds of the memory.
_ISOLATED = ["-I", "-S", "-c"]
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from bytelane.runtime.watch.sentinel import main; main(sys.argv[2:])"
)
_MISSING = -1


class Launched(NamedTuple):
    """A sentinel that runs, and our ends of what we share with it."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    board: Board
    address: Address


def launch(rank: int, world: int, host: str, limits: Limits) -> Launched:
    """Start this process's sentinel; it is reached at the host's address."""
    with contextlib.ExitStack() as handed_over:
        try:
            bound = handed_over.enter_context(bind(host))
        except OSError as error:
            raise TrainingError(
                f"cannot listen at {host}: {error.strerror}; give an address of this host"
            ) from None
        ours, theirs = socket.socketpair()
        handed_over.enter_context(theirs)
        memory = handed_over.enter_context(_memory_file())
        memory.truncate(size_bytes(world))
        files = [theirs.fileno(), bound.fileno(), memory.fileno()]
        for opened in (_open_pidfd(), _open_stat()):
            if opened != _MISSING:
                handed_over.callback(os.close, opened)
            files.append(opened)
        address = Address(host, bound.getsockname()[1], os.getpid(), os.urandom(TOKEN_BYTES))
        numbers = [rank, world, os.getpid(), *files, *limits]
        try:
            process = _start([str(number) for number in numbers], files)
        except OSError as error:
            ours.close()
            raise TrainingError(f"cannot start a sentinel: {error.strerror}") from None
        return Launched(process, ours, Board(memory.fileno(), world), address)


def _start(words: list[str], files: list[int]) -> subprocess.Popen[bytes]:
    root = str(Path(bytelane.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, *_ISOLATED, _BOOT, root, *words],
        pass_fds=[file for file in files if file != _MISSING],
        # It outlives its rank a little, and whoever reads the rank's output must not wait for that.
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for the rank
    )


def _memory_file() -> IO[bytes]:
    """Return a file that no folder knows."""
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
