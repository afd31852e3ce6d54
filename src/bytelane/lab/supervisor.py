"""The process that holds a lab: ``python -m bytelane.lab.supervisor``; :mod:`.control` starts it.

A lab consists of this process, its descendants and its open files only: no name, no mount, no file
on disk. It ends when its owner closes the connection or dies, by whatever signal, and leaves
nothing. In mode namespace it is also the first process of a pid namespace, so that the kernel kills
all others if it is killed itself.
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
    """The interface of a mode of the lab."""

    @property
    def tick_s(self) -> float | None: ...
    def entered(self, host: int) -> AbstractContextManager[None]: ...
    def set_rate(self, host: int, rate: float) -> None: ...
    def tick(self, children: Sequence[Child]) -> None: ...


class Supervisor:
    """Carries out the requests of one owner."""

    def __init__(self, channel: Channel, network: Network) -> None:
        self._channel = channel
        self._network = network
        self._children = Children()

    def serve(self, owner: int) -> None:
        """Answer requests until the owner is gone; ``owner`` is its pidfd."""
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
        """Kill all commands."""
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
    """Build the network of a lab."""
    if blueprint.mode == "namespace":
        from bytelane.lab.namespaces import Namespaces

        return Namespaces(blueprint)
    from bytelane.lab.pacer import Pacer

    return Pacer(blueprint)


def main(connection: int, owner: int, blueprint: bytes) -> None:
    """Build the lab, report it, and serve the owner."""
    # Only its owner ends a supervisor. Not SIG_IGN: the commands started here would inherit that.
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
    supervisor = Supervisor(channel, network)
    try:
        channel.send(Done())
        supervisor.serve(owner)
    finally:
        supervisor.end()


def _wake_on_child() -> socket.socket:
    """Return a socket that is readable after a signal, such as SIGCHLD."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    return reader


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode())
