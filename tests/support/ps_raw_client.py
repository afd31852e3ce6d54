"""A worker in the tests' own hands: two raw DEALERs, and a server process to talk to."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import zmq

from bytelane import __version__
from bytelane.runtime.ps.frames import (
    PROTOCOL,
    Buffer,
    Got,
    Header,
    Join,
    Joined,
    Layout,
    Leave,
    Message,
    Push,
    Row,
    Sum,
    decode,
    encode,
    encode_table,
    identity,
)
from bytelane.runtime.ps.keys import Keys
from bytelane.runtime.ps.members import Side

PATIENCE_S = 10.0
One = TypeVar("One")


class RawWorker:
    """Sends what a test says, and returns what arrives; connects when it is first used."""

    def __init__(self, port: int, rank: int = 0, world: int = 1, keys: Keys | None = None) -> None:
        self.rank, self.world = rank, world
        self.name = identity(rank, os.urandom(8))
        self._context = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._port, self._keys = port, keys

    def _socket(self, side: Side) -> "zmq.Socket[bytes]":
        """Connect where that is needed first."""
        if side not in self._sockets:
            port = self._port if side == "up" else self._port + 1
            self._sockets[side] = self._dealer(port, self._keys)
        return self._sockets[side]

    def _dealer(self, port: int, keys: Keys | None) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.IDENTITY, self.name)
        if keys is not None:
            socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
            socket.setsockopt(zmq.CURVE_SERVERKEY, keys.peer)
        socket.connect(f"tcp://127.0.0.1:{port}")
        return socket

    def send(self, side: Side, header: Header, payload: Buffer | None = None) -> None:
        self.send_frames(side, encode(header, payload))

    def send_frames(self, side: Side, frames: Sequence[Any]) -> None:
        self._socket(side).send_multipart(frames)

    def hears(self, side: Side, within_s: float) -> bool:
        """Tell whether a message arrives in this time."""
        return bool(self._socket(side).poll(1000 * within_s))

    def receive(self, side: Side, kind: type[One]) -> tuple[One, memoryview]:
        """Return the next message, which must be of this kind."""
        assert self.hears(side, PATIENCE_S), f"no {kind.__name__} on {side}"
        message = decode(self._socket(side).recv_multipart())
        assert isinstance(message, Message), message
        assert isinstance(message.header, kind), message.header
        return message.header, message.payload

    def join(self, *sides: Side, job: str = "job") -> None:
        for side in sides or ("up", "down"):
            self.send(side, self.asks(job=job))
            assert self.receive(side, Joined)[0] == Joined(0, 1)

    def asks(self, **changes: Any) -> Join:
        terms = {"protocol": PROTOCOL, "version": __version__, "job": "job"} | changes
        return Join(rank=self.rank, world=self.world, **terms)

    def layout(self, rows: Sequence[Row], credit_bytes: int | None = None) -> None:
        self.send("up", Layout(1, "digest", credit_bytes), encode_table(rows))

    def push(self, number: int, operation: int, payload: Buffer, used: bytes = b"\1") -> None:
        self.send("up", Push(1, number, operation, used), payload)

    def take_sum(self) -> tuple[Sum, bytes]:
        """Receive a sum and acknowledge it."""
        header, payload = self.receive("down", Sum)
        self.got(header)
        return header, bytes(payload)

    def got(self, header: Sum) -> None:
        self.send("down", Got(header.layout, header.round, header.operation))

    def leave(self) -> None:
        self.send("up", Leave())

    def close(self) -> None:
        self._context.destroy(linger=0)


class ServerProcess:
    """A server in a process of its own; ended by its pid, whatever happens."""

    def __init__(self, *arguments: str, listen: str = "127.0.0.1:0") -> None:
        command = [sys.executable, "-m", "bytelane.runtime.ps.process", "--listen", listen]
        self.process = subprocess.Popen(
            [*command, "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self.ready = json.loads(self._line())
        except BaseException:
            self.close()
            raise
        self.port: int = self.ready["up"]

    def _line(self) -> str:
        assert self.process.stdout is not None
        there, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert there, "the server does not answer"
        return self.process.stdout.readline()

    def end(self, number: int | None = None) -> dict[str, int]:
        """Wait for a quiet end, after this signal; return the counts of dropped messages."""
        if number is not None:
            self.process.send_signal(number)
        out, self.errors = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, self.errors
        assert "Traceback" not in self.errors
        dropped: dict[str, int] = json.loads(out)["dropped"]
        return dropped

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


@contextlib.contextmanager
def a_server(*arguments: str) -> Iterator[ServerProcess]:
    server = ServerProcess(*arguments)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def workers(
    server: ServerProcess, world: int, keys: Keys | None = None
) -> Iterator[list[RawWorker]]:
    """Let workers join both connections."""
    made = [RawWorker(server.port, rank, world, keys) for rank in range(world)]
    try:
        for worker in made:
            worker.join()
        yield made
    finally:
        for worker in made:
            worker.close()


def eventually(condition: Any) -> bool:
    """Tell whether it becomes true within the patience of a test."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
