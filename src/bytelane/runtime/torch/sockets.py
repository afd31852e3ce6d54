"""Find the sockets of a process group, and break them.

Gloo waits for a frozen peer until its timeout, half an hour by default, and offers no way to stop
it. A socket that is shut down is an error at once, and lets its threads go.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


class Sockets:
    """Open sockets by number and identity: a number may be another's by the time it is used."""

    def __init__(self) -> None:
        self._identities: dict[int, str] = {}

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Count as ours what is opened within."""
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
    """Return number -> identity; nothing where the system does not tell."""
    found = {}
    with contextlib.suppress(OSError):
        for number in os.listdir(DESCRIPTORS):
            with contextlib.suppress(OSError):  # the one that listed them is closed again
                identity = os.readlink(DESCRIPTORS / number)
                if identity.startswith("socket:"):
                    found[int(number)] = identity
    return found
