"""TCP probes: ask a silent peer's host whether its process exists.

A rank listens on a port and its kernel accepts connections for it, even while the process is
stopped. So a connection that is accepted means: the process exists. One that is refused: it is gone
and its host is not. No answer: the host or the network to it is gone.
"""

import contextlib
import errno
import select
import socket

from bytelane.runtime.liveness.address import Address
from bytelane.runtime.liveness.message import Answer

_UNDER_WAY = (errno.EINPROGRESS, errno.EWOULDBLOCK, 0)


class TcpProbes:
    """Connections that are being tried, at most one per peer."""

    def __init__(self) -> None:
        self._tried: dict[int, socket.socket] = {}

    def probe(self, rank: int, address: Address) -> Answer:
        """Return the answer to the last probe, and probe again; call this once per second."""
        answer = self._answer(rank)
        self.forget(rank)
        probe = socket.socket(address.family, socket.SOCK_STREAM)
        probe.setblocking(False)
        error = probe.connect_ex((address.host, address.port))
        if error in _UNDER_WAY:
            self._tried[rank] = probe
            return answer
        probe.close()
        return Answer.GONE if error == errno.ECONNREFUSED else answer

    def forget(self, rank: int) -> None:
        """Close the connection of the last probe."""
        if rank in self._tried:
            with contextlib.suppress(OSError):
                self._tried.pop(rank).close()

    def _answer(self, rank: int) -> Answer:
        if rank not in self._tried:
            return Answer.NONE
        poll = select.poll()
        poll.register(self._tried[rank], select.POLLOUT)
        if not poll.poll(0):
            return Answer.NONE
        error = self._tried[rank].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error == 0:
            return Answer.THERE
        return Answer.GONE if error == errno.ECONNREFUSED else Answer.NONE
