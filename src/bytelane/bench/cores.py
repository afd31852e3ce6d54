"""For how long a thread has waited for a core that other threads had."""

import os
import weakref
from contextlib import suppress

# CPU time in ns, time in the queue for a core in ns, how often it was given one.
LINUX_SAYS = "/proc/thread-self/schedstat"


class CoreQueue:
    """The queue in front of the machine's cores, as the thread that makes this knows it."""

    def __init__(self, says: str = LINUX_SAYS) -> None:
        self._says: int | None = None
        with suppress(OSError):
            self._says = os.open(says, os.O_RDONLY)
            weakref.finalize(self, os.close, self._says)

    def waited_s(self) -> float:
        """Return how long this thread has stood in it; 0 where nobody says."""
        if self._says is None:
            return 0.0
        return int(os.pread(self._says, 99, 0).split()[1]) / 1e9
