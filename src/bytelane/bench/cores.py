"""Measure how long a thread has waited for a CPU core (Linux schedstat)."""

import os
import weakref
from contextlib import suppress

# CPU time in ns, run-queue time in ns, number of time slices.
LINUX_SAYS = "/proc/thread-self/schedstat"


class CoreQueue:
    """The run queue of the cores, as the thread that makes this waits in it."""

    def __init__(self, says: str = LINUX_SAYS) -> None:
        self._says: int | None = None
        with suppress(OSError):
            self._says = os.open(says, os.O_RDONLY)
            weakref.finalize(self, os.close, self._says)

    def waited_s(self) -> float:
        """Return how long this thread has waited in it; 0 where the kernel does not tell."""
        if self._says is None:
            return 0.0
        return int(os.pread(self._says, 99, 0).split()[1]) / 1e9
