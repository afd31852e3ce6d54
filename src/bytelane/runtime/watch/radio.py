"""The socket on which sentinels hear each other.

Datagrams, not connections: a link that was cut for twenty seconds carries the next one at once,
whereas TCP would have doubled its waiting time again and again; and there is nothing to accept, to
reconnect or to close. With 64 ranks on 8 hosts that is 500 datagrams of 50 bytes a second and host.
"""

import contextlib
import socket
from collections.abc import Iterable, Iterator, Sequence

from bytelane.runtime.watch.address import Address, family_of
from bytelane.runtime.watch.message import Kind, Message, State, decode, encode

# Heartbeats must not starve behind gradients: the band that a queue with priorities serves first.
_TOS_LOW_DELAY = 0x10
_MOST_BYTES = 2048
_MOST_AT_ONCE = 1000  # then other things get their turn


class Radio:
    """Tells of one rank, hears of the others."""

    def __init__(self, bound: socket.socket, rank: int, addresses: Sequence[Address]) -> None:
        bound.setblocking(False)
        self._socket = bound
        self._rank = rank
        self._targets = [(address.host, address.port) for address in addresses]
        self._tokens = [address.token for address in addresses]
        self._number = 0

    def send(
        self,
        kind: Kind,
        to: Iterable[int],
        *,
        progress: int,
        state: State,
        stopped_s: float = 0.0,
        reason: str = "",
    ) -> None:
        """Tell some peers; whether it reaches them is not known."""
        self._number += 1
        stopped_ms = int(stopped_s * 1000)
        message = Message(kind, self._rank, self._number, progress, state, stopped_ms, reason)
        datagram = encode(message, self._tokens[self._rank])
        for rank in to:
            with contextlib.suppress(OSError):  # no way there at the moment, or no room
                self._socket.sendto(datagram, self._targets[rank])

    def receive(self) -> Iterator[Message]:
        """Yield what has arrived, without waiting."""
        for _ in range(_MOST_AT_ONCE):
            try:
                datagram = self._socket.recv(_MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:  # what the network says of an earlier datagram
                continue
            message = decode(datagram, self._tokens)
            if message is not None and message.rank != self._rank:
                yield message


def bind(host: str) -> socket.socket:
    """Return a socket that is reached at a host's address."""
    family = family_of(host)
    bound = socket.socket(family, socket.SOCK_DGRAM)
    try:
        bound.bind((host, 0))
        with contextlib.suppress(OSError):  # a wish
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _TOS_LOW_DELAY)
            else:
                bound.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _TOS_LOW_DELAY)
    except BaseException:
        bound.close()
        raise
    return bound
