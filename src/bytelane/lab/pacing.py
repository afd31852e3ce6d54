"""Slow this process's own TCP connections down to a link rate, without any privilege.

The kernel paces each *connection*; a ring all-reduce sends on one connection per rank, so there it
is the same as a link. There are no shared queues and no priorities in this mode.
"""

import os
import socket
from collections.abc import Iterable
from pathlib import Path

from bytelane.errors import InputError

# Linux's number; Python's socket module does not have the name.
SO_MAX_PACING_RATE = 47


def open_sockets() -> set[int]:
    """Return the file descriptors of this process that are sockets."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(entry).startswith("socket:"):
                found.add(int(entry.name))
        except OSError:
            continue  # closed meanwhile
    return found


def pace(descriptors: Iterable[int], rate: float) -> int:
    """Limit those that are connected TCP sockets to ``rate`` bytes per second; count them."""
    if rate < 1:
        raise InputError(f"a rate of {rate} bytes per second cannot carry anything")
    paced = 0
    for descriptor in descriptors:
        connection = socket.socket(fileno=os.dup(descriptor))  # a copy: ours to close
        with connection:
            if connection.type == socket.SOCK_STREAM and _is_connected(connection):
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, int(rate))
                paced += 1
    return paced


def _is_connected(connection: socket.socket) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        connection.getpeername()
    except OSError:
        return False
    return True
