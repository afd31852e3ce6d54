"""Messages between a lab's owner and its supervisor, and the channel that carries them.

They are two processes: the owner runs ``with Lab(...)``; the supervisor holds the cluster. The
owner sends requests, the supervisor answers, one packet each. Open files travel along: a command's
output, and the pipe on which the supervisor will write its exit code.
"""

import errno
import os
import socket
from typing import Literal

import msgspec

from bytelane.errors import LabError
from bytelane.lab.links import Priority

Mode = Literal["namespace", "pacing"]

# A command with its environment is one packet.
MOST_BYTES = 1 << 20
MOST_FILES = 3


class Blueprint(msgspec.Struct, frozen=True):
    """The lab to build."""

    hosts: int
    rate: float
    """Bytes per second."""
    mode: Mode
    priority: Priority | None
    outside: str
    """The owner's network namespace, which must not be touched."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start a command in a host; sent with three files: stdout, stderr, exit code."""

    host: int
    command: list[bytes]  # names of files need not be text
    environment: dict[bytes, bytes]
    folder: bytes


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to a command and all its descendants that stayed in its group."""

    process: int
    number: int


class SetRate(msgspec.Struct, frozen=True, tag=True):
    """Change a host's link, in both directions."""

    host: int
    rate: float
    """Bytes per second."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The request is done; ``process`` is the pid of a started command."""

    process: int = 0


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The request could not be carried out."""

    reason: str


Request = Start | Signal | SetRate
Answer = Done | Refused
Message = Request | Answer

_decoder = msgspec.msgpack.Decoder(Message)


class Channel:
    """One end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def send(self, message: Message, files: list[int] | None = None) -> None:
        packet = msgspec.msgpack.encode(message)
        try:
            if len(packet) > MOST_BYTES:
                raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
            socket.send_fds(self._connection, [packet], files or [])
        except OSError as error:
            # The kernel may allow less than we do.
            if error.errno == errno.EMSGSIZE:
                raise LabError(
                    f"the command and its environment have {len(packet)} bytes, too many to send"
                ) from None
            raise LabError(f"the lab's supervisor is gone ({error.strerror})") from None

    def receive(self) -> tuple[Message, list[int]] | None:
        """Wait for a message; None when the other side is gone."""
        try:
            packet, files, _, _ = socket.recv_fds(
                self._connection, MOST_BYTES, MOST_FILES, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            return None
        return (_decoder.decode(packet), files) if packet else None


def channel_pair() -> tuple[Channel, socket.socket]:
    """Return the owner's end, and the supervisor's as a socket to hand on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours), theirs
