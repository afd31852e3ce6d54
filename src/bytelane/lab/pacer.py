"""Hosts without any privilege: pace the TCP connections of each command from the supervisor.

All hosts are this machine. The supervisor scans its descendants every 20 ms, duplicates their new
sockets, and sets their rate. The limit is per connection: there are no shared
links, no queues and no priorities.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from bytelane.errors import LabError
from bytelane.lab.children import Child, descendants
from bytelane.lab.linux import copy_descriptor
from bytelane.lab.messages import Blueprint
from bytelane.lab.pacing import pace


class Pacer:
    """Sets the rate of every TCP connection that a command has."""

    tick_s = 0.02

    def __init__(self, blueprint: Blueprint) -> None:
        self._rates = [blueprint.rate] * blueprint.hosts
        self._paced: set[str] = set()
        with socket.socket() as own:
            try:
                os.close(copy_descriptor(os.getpid(), own.fileno()))
            except OSError as error:
                raise LabError(f"sockets of other processes cannot be paced: {error}") from None

    def entered(self, host: int) -> AbstractContextManager[None]:
        """Do nothing: all hosts are this machine."""
        return contextlib.nullcontext()

    def set_rate(self, host: int, rate: float) -> None:
        self._rates[host] = rate
        self._paced.clear()  # the next tick paces all of them again

    def tick(self, children: Sequence[Child]) -> None:
        """Pace new connections."""
        seen = set()
        for child in children:
            for pid in descendants(child.pid):
                for descriptor, name in _sockets(pid):
                    seen.add(name)
                    if name not in self._paced and self._pace(pid, descriptor, child.host):
                        self._paced.add(name)
        self._paced &= seen  # the kernel may reuse a socket number

    def _pace(self, pid: int, descriptor: int, host: int) -> bool:
        """Pace one socket; return whether it was a connection."""
        try:
            copy = copy_descriptor(pid, descriptor)
        except OSError:
            return False  # closed meanwhile, or the command of another user
        try:
            return pace([copy], self._rates[host]) == 1
        finally:
            os.close(copy)


def _sockets(pid: int) -> Iterator[tuple[int, str]]:
    """Yield each open socket of a process and its name, which no other socket has."""
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                name = os.readlink(entry)
                if name.startswith("socket:"):
                    yield int(entry.name), name
    except OSError:
        return  # ended meanwhile
