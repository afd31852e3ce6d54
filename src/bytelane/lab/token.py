"""Authenticate the connections of our own processes by a token.

Any process that reaches a port can connect to it. The token travels another way, which only
members of the run can read; it keeps out stray connections, other runs and guesses, but not
attackers who can read the network.
"""

import contextlib
import hmac
import os
import selectors
import socket
import time

TOKEN_BYTES = 16
MOST_STRANGERS = 100


def new_token() -> bytes:
    return os.urandom(TOKEN_BYTES)


def accept_known(
    server: socket.socket, token: bytes, count: int, limit_s: float
) -> list[socket.socket]:
    """Accept connections until so many have begun with the token; close all others.

    A silent connection does not delay others. Raises TimeoutError after ``limit_s``.
    """
    known: list[socket.socket] = []
    deadline = time.monotonic() + limit_s
    try:
        with contextlib.closing(_Doorstep(server, token)) as doorstep:
            while len(known) < count:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"{len(known)} of {count} connected within {limit_s:g} s")
                known += doorstep.listen(left_s)
    except BaseException:
        for connection in known:
            connection.close()
        raise
    for connection in known[count:]:
        connection.close()
    return known[:count]


class _Doorstep:
    """Connections that have not yet sent the whole token."""

    def __init__(self, server: socket.socket, token: bytes) -> None:
        self._token = token
        self._heard: dict[socket.socket, bytes] = {}
        self._server = server
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    def close(self) -> None:
        for connection in list(self._heard):
            self._forget(connection).close()
        self._selector.close()

    def listen(self, limit_s: float) -> list[socket.socket]:
        """Wait for an event; return the connections that have sent the token."""
        found = []
        for key, _ in self._selector.select(limit_s):
            if key.fileobj is self._server:
                self._accept()
            else:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection in self._heard and self._has_said_it(connection):
                    found.append(connection)
        return found

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:  # the peer has closed it already
            return
        connection.setblocking(False)
        if len(self._heard) >= MOST_STRANGERS:
            self._forget(next(iter(self._heard))).close()
        self._heard[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _has_said_it(self, connection: socket.socket) -> bool:
        """Read from a connection, and close it if it sends anything but the token."""
        try:
            piece = connection.recv(len(self._token) - len(self._heard[connection]))
        except OSError:
            piece = b""
        self._heard[connection] += piece
        if piece and len(self._heard[connection]) < len(self._token):
            return False
        said = self._heard[connection]
        self._forget(connection)
        if hmac.compare_digest(said, self._token):
            return True
        connection.close()
        return False

    def _forget(self, connection: socket.socket) -> socket.socket:
        self._selector.unregister(connection)
        del self._heard[connection]
        return connection
