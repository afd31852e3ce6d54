"""Slow this process's own TCP connections down to a link rate, without any privilege.

The kernel paces each *connection*; a ring all-reduce sends on one connection per rank, so there it
is the same as a link. There are no shared queues and no priorities in this mode.
"""

import errno
import os
import socket
import struct
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
    """Limit the connected TCP sockets among these to ``rate`` bytes per second; count them."""
    if not 1 <= rate < 2**63:
        raise InputError(f"{rate} bytes per second cannot be paced; use at least 1")
    # Eight bytes: as a C int the rate would end at 17 Gbit/s.
    limit = struct.pack("Q", int(rate))
    paced = 0
    for descriptor in descriptors:
        copy = os.dup(descriptor)  # ours to close
        try:
            with socket.socket(fileno=copy) as connection:
                if connection.type == socket.SOCK_STREAM and _is_connected(connection):
                    connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, limit)
                    paced += 1
        except OSError as error:
            if error.errno != errno.ENOTSOCK:
                raise
            os.close(copy)
    return paced


def _is_connected(connection: socket.socket) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        connection.getpeername()
    except OSError:
        return False
    return True
