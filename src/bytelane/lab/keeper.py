"""The process that holds a lab: ``python -m bytelane.lab.keeper``; :mod:`.control` starts it.

All there is of a lab are this process, its descendants and its open files: no name, no mount, no
file on disk. It ends when its owner closes the connection or dies, by whatever signal, and then
there is nothing left. With namespaces it is the first process of a namespace of processes too, so
that even if it is killed itself the kernel ends all others with it.
"""

import os
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from bytelane.errors import LabError
from bytelane.lab.children import Child, Children
from bytelane.lab.linux import adopt_orphans
from bytelane.lab.messages import Answer, Blueprint, Channel, Done, Message, Refused, SetRate, Start
from bytelane.lab.messages import Signal as SendSignal


class Network(Protocol):
    """What a mode of the lab must be able to do."""

    @property
    def tick_s(self) -> float | None: ...
    def entered(self, host: int) -> AbstractContextManager[None]: ...
    def set_rate(self, host: int, rate: float) -> None: ...
    def tick(self, children: Sequence[Child]) -> None: ...


class Keeper:
    """Serves one owner."""

    def __init__(self, channel: Channel, network: Network) -> None:
        self._channel = channel
        self._network = network
        self._children = Children()

    def serve(self, owner: int) -> None:
        """Answer until the owner is gone; ``owner`` is readable when its process has ended."""
        awake = _wake_on_child()
        with selectors.DefaultSelector() as selector:
            for file in (self._channel.fileno(), owner, awake.fileno()):
                selector.register(file, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(self._tick_s())}
                if awake.fileno() in ready:
                    awake.recv(1024)
                self._children.reap()
                if owner in ready or (self._channel.fileno() in ready and not self._answer()):
                    break
                self._network.tick(self._children.living())

    def _tick_s(self) -> float | None:
        return self._network.tick_s if self._children.living() else None

    def _answer(self) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        try:
            answer: Answer = Done(self._do(*received))
        except (LabError, OSError) as error:
            answer = Refused(str(error))
        try:
            self._channel.send(answer)
        except LabError:
            return False
        return True

    def end(self) -> None:
        """End everything that runs."""
        self._children.end()

    def _do(self, request: Message, files: list[int]) -> int:
        match request:
            case Start():
                with self._network.entered(request.host):
                    return self._children.start(request, files).pid
            case SendSignal():
                self._children.signal(request.process, request.number)
            case SetRate():
                self._network.set_rate(request.host, request.rate)
        return 0


def build(blueprint: Blueprint) -> Network:
    """Make the network that was asked for."""
    if blueprint.mode == "namespace":
        from bytelane.lab.namespaces import Namespaces

        return Namespaces(blueprint)
    from bytelane.lab.pacer import Pacer

    return Pacer(blueprint)


def main(connection: int, owner: int, blueprint: bytes) -> None:
    """Build, say so, serve."""
    # Only its owner ends a keeper. Not SIG_IGN: the commands started here would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    channel = Channel(socket.socket(fileno=connection))
    os.set_inheritable(connection, False)
    os.set_inheritable(owner, False)
    adopt_orphans()
    try:
        network = build(msgspec.json.decode(blueprint, type=Blueprint))
    except (LabError, OSError) as error:
        channel.send(Refused(str(error)))
        return
    keeper = Keeper(channel, network)
    try:
        channel.send(Done())
        keeper.serve(owner)
    finally:
        keeper.end()


def _wake_on_child() -> socket.socket:
    """Return a socket that is readable after a signal, such as that of a child's end."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    return reader


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode())
