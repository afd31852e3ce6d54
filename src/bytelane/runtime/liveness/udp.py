"""The UDP socket of a sentinel: sends heartbeats, receives those of the other sentinels.

Datagrams, not connections: a link that was cut for 20 s carries the next one at once, whereas TCP
would have doubled its waiting time again and again; and there is nothing to accept, to reconnect or
to close. With 64 ranks on 8 hosts that is 500 datagrams of 50 bytes per second and host.
"""

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator

from bytelane.runtime.liveness.address import Address, family_of
from bytelane.runtime.liveness.message import Fault, Kind, Message, State, decode, encode

# Heartbeats must not starve behind gradients: the class that priority queues serve first.
_TOS_LOW_DELAY = 0x10
_MOST_BYTES = 2048
_MOST_AT_ONCE = 1000  # then the sentinel's other work gets its turn
_PORTS_TRIED = 20


class UdpSocket:
    """Sends messages about one rank, and receives those about the others."""

    def __init__(self, bound: socket.socket, rank: int, address: Address) -> None:
        bound.setblocking(False)
        self._socket = bound
        self._rank = rank
        self._own = address
        self.peers: dict[int, Address] = {}
        """Known peers, by rank."""
        self._tokens = {rank: address.token}
        # A new sentinel's numbers must be higher than those of the one that it replaces.
        self._number = time.monotonic_ns()

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def meet(self, rank: int, address: Address) -> bool:
        """Record a peer's address; tell whether it is new."""
        if self.peers.get(rank) == address or rank == self._rank:
            return False
        self.peers[rank] = address
        self._tokens[rank] = address.token
        return True

    def is_near(self, rank: int) -> bool:
        """Tell whether a peer is on this host, so that no network can drop datagrams."""
        return self.peers[rank].host == self._own.host

    def send(
        self,
        kind: Kind,
        to: Iterable[int],
        *,
        progress: int,
        state: State,
        stopped_s: float = 0.0,
        reason: str = "",
        fault: Fault = Fault.FAILED,
        about: int = -1,
    ) -> None:
        """Send a message to some peers; whether it reaches them is not known."""
        self._number += 1
        stopped_ms = int(stopped_s * 1000)
        message = Message(
            kind, self._rank, self._number, progress, state, stopped_ms, reason, fault, about
        )
        datagram = encode(message, self._own.token)
        for rank in to:
            self._put(datagram, rank)

    def introduce(self, to: Iterable[int]) -> None:
        """Send our address to peers that may not know it yet."""
        address = self._own.encode().decode()
        for rank in to:
            self._number += 1
            hello = Message(Kind.HELLO, self._rank, self._number, reason=address)
            self._put(encode(hello, self.peers[rank].token), rank)

    def receive(self) -> Iterator[Message]:
        """Yield the messages that have arrived, without waiting."""
        for _ in range(_MOST_AT_ONCE):
            try:
                datagram = self._socket.recv(_MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:  # a network error about an earlier datagram
                continue
            message = decode(datagram, self._tokens, self._rank)
            if message is not None and message.rank != self._rank:
                yield message

    def _put(self, datagram: bytes, rank: int) -> None:
        target = self.peers[rank]
        with contextlib.suppress(OSError):  # no route at the moment, or a full buffer
            self._socket.sendto(datagram, (target.host, target.port))


def bind(host: str) -> socket.socket:
    """Return a socket that is reached at a host's address."""
    return _bind(host, socket.SOCK_DGRAM, 0)


def bind_both(host: str) -> tuple[socket.socket, socket.socket]:
    """Return a socket for datagrams, and one that accepts TCP probes, at the same port."""
    for _ in range(_PORTS_TRIED):
        bound = bind(host)
        try:
            return bound, _bind(host, socket.SOCK_STREAM, bound.getsockname()[1])
        except OSError:  # another process has the TCP port
            bound.close()
    raise OSError(0, f"no port is free for datagrams and connections in {_PORTS_TRIED} attempts")


def _bind(host: str, kind: socket.SocketKind, port: int) -> socket.socket:
    family = family_of(host)
    bound = socket.socket(family, kind)
    try:
        bound.bind((host, port))
        with contextlib.suppress(OSError):  # priority is optional
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _TOS_LOW_DELAY)
            else:
                bound.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _TOS_LOW_DELAY)
        if kind == socket.SOCK_STREAM:
            bound.setblocking(False)
            bound.listen()
    except BaseException:
        bound.close()
        raise
    return bound
