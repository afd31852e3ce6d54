"""The sockets of a parameter server: two ROUTERs that neither block nor drop, and CURVE."""

import errno
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bytelane.errors import InputError
from bytelane.runtime.ps.address import Address
from bytelane.runtime.ps.frames import MOST_PAYLOAD_BYTES
from bytelane.runtime.ps.keys import Keys
from bytelane.runtime.ps.members import Side
from bytelane.runtime.ps.server import Outgoing

if TYPE_CHECKING:
    import zmq

SIDES: tuple[Side, Side] = ("up", "down")
# Of one socket before the other gets its turn.
_MOST_AT_ONCE = 64
_MOST_FRAMES = 4
# Where one message waits unread, the peer's TCP connection waits, and nothing is lost.
_UNREAD_MESSAGES = 256
_MOST_TRIES = 50
_ZAP = "inproc://zeromq.zap.01"


class Wire:
    """Both bound sockets of a server. Not for several threads."""

    def __init__(self, address: Address, keys: Keys | None = None) -> None:
        import zmq
        from zmq.utils import z85

        self._zmq = zmq
        self._context = zmq.Context()
        self._keys = keys
        self._admitted = None if keys is None else [b"CURVE", z85.decode(keys.peer)]
        self._kept: dict[tuple[Side, bytes], deque[Outgoing]] = {}
        self._sockets: dict[Side, zmq.Socket[bytes]] = {}
        try:
            self._zap = None if keys is None else self._authenticator()
            self.address = self._bind_pair(address)
        except BaseException:
            self.close()
            raise

    def register(self, poller: "zmq.Poller") -> None:
        """Wake the poller whenever there is something to read."""
        for socket in (*self._sockets.values(), self._zap):
            if socket is not None:
                poller.register(socket, self._zmq.POLLIN)

    def received(self, side: Side) -> Iterator[tuple[bytes, list[Any]]]:
        """Yield the messages that have come, a limited number: the sender, and its frames."""
        for _ in range(_MOST_AT_ONCE):
            try:
                name = self._sockets[side].recv(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            yield name, self._rest(side)

    def send(self, message: Outgoing) -> None:
        """Send, or keep if the worker is not connected; never block, never drop."""
        waiting = self._kept.get((message.side, message.to))
        if waiting is not None or not self._is_sent(message):
            self._kept.setdefault((message.side, message.to), deque()).append(message)

    @property
    def keeps(self) -> bool:
        """Whether messages wait for a worker that is not connected."""
        return bool(self._kept)

    def send_kept(self) -> None:
        """Try again to send what was kept, in order."""
        for key, waiting in list(self._kept.items()):
            while waiting and self._is_sent(waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._kept[key]

    def forget_all_but(self, takes_part: Callable[[bytes], bool]) -> None:
        """Drop what was kept for workers that have left, or were refused and went away."""
        for key in [key for key in self._kept if not takes_part(key[1])]:
            del self._kept[key]

    def authenticate(self) -> None:
        """Answer libzmq's questions whether a connecting key may enter (ZeroMQ RFC 27)."""
        while self._zap is not None and self._zap.poll(0):
            request = self._zap.recv_multipart()
            _, number, _, _, _, *mechanism_and_key = request
            is_known = mechanism_and_key == self._admitted
            code, text = (b"200", b"OK") if is_known else (b"400", b"unknown key")
            self._zap.send_multipart([b"1.0", number, code, text, b"", b""])

    def close(self) -> None:
        """Close the sockets at once."""
        self._context.destroy(linger=0)

    def _rest(self, side: Side) -> list[Any]:
        socket = self._sockets[side]
        frames: list[Any] = []
        while socket.getsockopt(self._zmq.RCVMORE):
            frame = socket.recv(self._zmq.NOBLOCK, copy=False)
            if len(frames) < _MOST_FRAMES:  # any more make it malformed just the same
                frames.append(frame.buffer)
        return frames

    def _is_sent(self, message: Outgoing) -> bool:
        frames = [message.to, *message.frames]
        try:
            self._sockets[message.side].send_multipart(frames, self._zmq.NOBLOCK, copy=False)
        except self._zmq.ZMQError as error:
            if error.errno in (errno.EAGAIN, errno.EHOSTUNREACH):
                return False
            raise
        return True

    def _authenticator(self) -> "zmq.Socket[bytes]":
        zap = self._context.socket(self._zmq.REP)
        zap.bind(_ZAP)
        return zap

    def _bind_pair(self, address: Address) -> Address:
        """Bind a port and the next one; port 0 stands for any two that are free."""
        if address.port:
            self._bind("up", address.up, address)
            self._bind("down", address.down, address)
            return address
        for _ in range(_MOST_TRIES):
            self._bind("up", address.up, address)
            bound = self._sockets["up"].getsockopt_string(self._zmq.LAST_ENDPOINT)
            here = Address(address.host, int(bound.rpartition(":")[2]))
            try:
                self._bind("down", here.down, here)
            except InputError:
                self._sockets.pop("up").close(0)
            else:
                return here
        raise InputError(f"{address.host} has no two free ports side by side")

    def _bind(self, side: Side, endpoint: str, address: Address) -> None:
        zmq = self._zmq
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)  # at a mark a ROUTER drops, so credits limit what is sent
        socket.setsockopt(zmq.RCVHWM, _UNREAD_MESSAGES)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_PAYLOAD_BYTES)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60_000)  # a stopped worker may go on
        socket.setsockopt(zmq.IPV6, int(":" in address.host))
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
            socket.setsockopt(zmq.ZAP_DOMAIN, b"bytelane")
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close(0)
            raise InputError(_cannot_bind(endpoint, error.errno, str(error))) from None
        self._sockets[side] = socket


def _cannot_bind(endpoint: str, number: int | None, text: str) -> str:
    place = endpoint.removeprefix("tcp://")
    if number == errno.EADDRINUSE:
        return f"{place} is in use; a server needs its port and the next one, so choose others"
    if number in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return f"{place} is not an address of this host; use one that is, or 0.0.0.0 for all"
    return f"cannot listen on {place}: {text}"
