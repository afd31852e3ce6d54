"""Ask the kernel of another host whether a process is there, when nothing is heard of it.

A rank listens on a port and its kernel accepts connections for it, even while the process is
stopped. So a connection that is accepted means: the process exists. One that is refused: it is gone
and its host is not. No answer: the host or the way to it is gone.
"""

import contextlib
import errno
import select
import socket

from bytelane.runtime.watch.address import Address
from bytelane.runtime.watch.message import Answer

_UNDER_WAY = (errno.EINPROGRESS, errno.EWOULDBLOCK, 0)


class Knocks:
    """Connections that are being tried, at most one per peer."""

    def __init__(self) -> None:
        self._tried: dict[int, socket.socket] = {}

    def knock(self, rank: int, address: Address) -> Answer:
        """Return what came of the last knock, and knock again; call this once a second."""
        answer = self._answer(rank)
        self.forget(rank)
        knock = socket.socket(address.family, socket.SOCK_STREAM)
        knock.setblocking(False)
        error = knock.connect_ex((address.host, address.port))
        if error in _UNDER_WAY:
            self._tried[rank] = knock
            return answer
        knock.close()
        return Answer.GONE if error == errno.ECONNREFUSED else answer

    def forget(self, rank: int) -> None:
        """Let go of what was tried."""
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
