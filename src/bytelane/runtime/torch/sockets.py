"""Find the sockets of a process group and shut them down, to end gloo's waits.

Gloo waits for a frozen peer until its timeout, 30 min by default, and offers no way to stop it. A
socket that is shut down is an error at once, and ends the waits of gloo's threads.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


class Sockets:
    """Open sockets by descriptor and inode: a descriptor may be reused by the time it is shut."""

    def __init__(self) -> None:
        self._identities: dict[int, str] = {}

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Record the sockets that are opened within."""
        before = _open_sockets()
        try:
            yield
        finally:
            self._identities |= dict(_open_sockets().items() - before.items())

    def break_all(self) -> None:
        """Shut down those that are still open."""
        now = _open_sockets()
        for number, identity in self._identities.items():
            if now.get(number) == identity:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as same:
                    same.getpeername()  # not one that listens: gloo would abort the process
                    same.shutdown(socket.SHUT_RDWR)


def _open_sockets() -> dict[int, str]:
    """Return descriptor -> inode; empty on a system without ``/proc``."""
    found = {}
    with contextlib.suppress(OSError):
        for number in os.listdir(DESCRIPTORS):
            with contextlib.suppress(OSError):  # listdir's own descriptor is closed again
                identity = os.readlink(DESCRIPTORS / number)
                if identity.startswith("socket:"):
                    found[int(number)] = identity
    return found
