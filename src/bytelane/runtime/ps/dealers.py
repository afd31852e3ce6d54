"""The sockets of a worker: two DEALERs per server that neither block nor copy, with monitors."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from socket import socketpair
from typing import Any, Literal, NamedTuple

from bytelane.errors import InputError
from bytelane.runtime.ps.address import Address
from bytelane.runtime.ps.frames import MOST_PAYLOAD_BYTES, SESSION_BYTES, Buffer, identity
from bytelane.runtime.ps.keys import Keys

Way = Literal["up", "down"]
WAYS: tuple[Way, Way] = ("up", "down")
# Of one socket before the others get their turn.
_MOST_AT_ONCE = 64
# More than encryption adds to a frame.
_CIPHER_BYTES = 1024


class Connection(NamedTuple):
    """One of the two connections to a server."""

    server: int
    way: Way


class Came(NamedTuple):
    """What a call of :meth:`Dealers.poll` has found."""

    readable: list[Connection]
    broken: list[Connection]


class Alarm:
    """Wakes the thread that polls; any thread may ring."""

    def __init__(self) -> None:
        self.heard, self._rings = socketpair()
        self.heard.setblocking(False)
        self._rings.setblocking(False)

    def ring(self) -> None:
        with suppress(OSError):  # full: it is awake; closed: it has ended
            self._rings.send(b"\0")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            self.heard.recv(4096)

    def close(self) -> None:
        self.heard.close()
        self._rings.close()


class Dealers:
    """All sockets of a worker. Not for several threads."""

    def __init__(
        self, addresses: Sequence[Address], rank: int, keys: Keys | None, alarm: Alarm
    ) -> None:
        import zmq

        self._zmq = zmq
        self._context = zmq.Context()
        self._keys = keys
        self._alarm = alarm
        self._name = identity(rank, os.urandom(SESSION_BYTES))
        self._dealers: dict[Connection, Any] = {}
        self._readable: dict[Any, Connection] = {}
        self._monitors: dict[Any, Connection] = {}
        self._poller = zmq.Poller()
        self._poller.register(alarm.heard, zmq.POLLIN)
        try:
            for server, address in enumerate(addresses):
                self._connect(Connection(server, "up"), address.up)
                self._connect(Connection(server, "down"), address.down)
        except zmq.ZMQError as error:
            self.close(0)
            raise InputError(f"cannot connect to {address}: {error}") from None

    def poll(self, timeout_s: float) -> Came:
        """Wait until something has come, the alarm has rung, or the time is over."""
        came = Came([], [])
        for source, _ in self._poller.poll(max(1, int(1e3 * timeout_s))):
            if source in self._readable:
                came.readable.append(self._readable[source])
            elif source in self._monitors:
                source.recv_multipart()
                came.broken.append(self._monitors[source])
            else:
                self._alarm.clear()
        return came

    def received(self, connection: Connection) -> Iterator[list[Any]]:
        """Yield the frames of messages that have come, a limited number."""
        for _ in range(_MOST_AT_ONCE):
            try:
                yield self._dealers[connection].recv_multipart(self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                return

    def send(self, connection: Connection, frames: Sequence[Buffer]) -> None:
        """Send without copying; without a mark this never blocks."""
        self._dealers[connection].send_multipart(frames, self._zmq.NOBLOCK, copy=False)

    def close(self, linger_ms: int) -> None:
        """Close the sockets when what was sent has left, or after this time."""
        self._context.destroy(linger=linger_ms)

    def _connect(self, connection: Connection, endpoint: str) -> None:
        zmq = self._zmq
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, self._name)
        dealer.setsockopt(zmq.LINGER, 0)
        # Own credits limit what is under way; at a mark a send would block.
        dealer.setsockopt(zmq.SNDHWM, 0)
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.setsockopt(zmq.MAXMSGSIZE, MOST_PAYLOAD_BYTES + _CIPHER_BYTES)
        dealer.setsockopt(zmq.IPV6, int("[" in endpoint))
        if self._keys is not None:
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public)
            dealer.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
            dealer.setsockopt(zmq.CURVE_SERVERKEY, self._keys.peer)
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        dealer.connect(endpoint)
        self._poller.register(dealer, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        self._dealers[connection] = dealer
        self._readable[dealer] = connection
        self._monitors[monitor] = connection
