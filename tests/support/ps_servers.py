"""Parameter servers for tests: as threads of this process, or as processes of their own."""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from bytelane.runtime.ps.address import Address
from bytelane.runtime.ps.drops import Drops
from bytelane.runtime.ps.keys import Keys
from bytelane.runtime.ps.server import Server
from bytelane.runtime.ps.wire import SIDES, Wire

ANY = Address("127.0.0.1", 0)
READY_S = 20.0


class ServerThread:
    """A server whose thread the test ends, or stops as if the process were frozen."""

    def __init__(self, keys: Keys | None = None) -> None:
        self.drops = Drops(lambda text: None)
        self.frozen = False
        self._wire = Wire(ANY, keys)
        self.address = self._wire.address
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over = True
        self._thread.join()

    def _run(self) -> None:
        server, poller = Server(self.drops), zmq.Poller()
        self._wire.register(poller)
        while not self._over:
            poller.poll(10)
            self._wire.authenticate()
            if self.frozen:
                time.sleep(0.01)
                continue
            for side in SIDES:
                for name, frames in self._wire.received(side):
                    for message in server.receive(side, name, frames, time.monotonic()):
                        self._wire.send(message)
            self._wire.send_kept()
        self._wire.close()


@contextmanager
def server_threads(count: int) -> Iterator[list[ServerThread]]:
    """Run servers in threads of this process."""
    servers = [ServerThread() for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.end()


@contextmanager
def server_processes(count: int) -> Iterator[list[tuple[subprocess.Popen[str], Address]]]:
    """Run real servers, which end when all workers have left; none outlives the test."""
    command = [sys.executable, "-m", "bytelane.runtime.ps.process", "--listen", "127.0.0.1:0"]
    ends_with_us = ["--parent", str(os.getpid()), "--json"]
    servers = [
        subprocess.Popen([*command, *ends_with_us], stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        yield [(server, _address(server)) for server in servers]
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def _address(server: subprocess.Popen[str]) -> Address:
    assert server.stdout is not None
    assert select.select([server.stdout], [], [], READY_S)[0], "a server is not ready"
    ready = json.loads(server.stdout.readline())
    return Address(ready["host"], ready["up"])
