"""Look up processes: whether one runs, and which sentinels a rank has started."""

import contextlib
from pathlib import Path

from bytelane.runtime.liveness import sentinel

# Taken from the module, so that a new name of it cannot make a test hurt nothing.
SENTINEL = sentinel.__name__.encode()


def state_of(pid: int) -> str:
    """The kernel's letter for a process: Z is a zombie, X has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def runs(pid: int) -> bool:
    """Whether a process has not ended; an orphan may be a zombie until the system's init looks."""
    return state_of(pid) not in "XZ"


def sentinels_of(pid: int) -> list[int]:
    """Return the sentinel of a rank: none before prepare(), and two while one takes over."""
    found = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in thread.read_text().split():
                with contextlib.suppress(OSError):
                    if SENTINEL in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append(int(child))
    return found
