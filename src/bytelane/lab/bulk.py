"""Send bulk TCP flows between hosts, all at once: ``python -m bytelane.lab.bulk FLOWS``.

It runs in every host, and sends and receives that host's flows. When it is asked to stop it prints,
for every flow that it receives, how many bytes had arrived when.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from bytelane.lab.agents import BEGUN, TOKEN
from bytelane.lab.environment import HOSTS
from bytelane.lab.token import accept_known

FIRST_PORT = 5200
PIECE_BYTES = 1 << 18
TICK_S = 0.01
PATIENCE_S = 20.0

Samples = list[tuple[float, int]]


class Flow(NamedTuple):
    """A transfer without end, from one host to another."""

    source: int
    destination: int
    tos: int = 0
    after_s: float = 0.0
    """How long to wait once connected."""


def main(flows: list[Flow], host: int, addresses: list[str], token: bytes) -> None:
    """Send and receive one host's flows, until asked to stop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    places = [(addresses[flow.destination], FIRST_PORT + i) for i, flow in enumerate(flows)]
    servers = {
        index: socket.create_server(places[index])
        for index, flow in enumerate(flows)
        if flow.destination == host
    }
    for index, flow in enumerate(flows):
        if flow.source == host:
            connection = _connect(places[index], flow.tos)
            connection.sendall(token)
            _in_background(_send, connection, flow.after_s)
    samples: dict[int, Samples] = {index: [] for index in servers}
    for index, server in servers.items():
        (connection,) = accept_known(server, token, 1, PATIENCE_S)
        _in_background(_receive, connection, samples[index])
    print(BEGUN, flush=True)
    signal.sigwait({signal.SIGTERM})
    print(json.dumps({index: found[:] for index, found in samples.items()}), flush=True)
    os._exit(0)  # flows have no end of their own


def _in_background(part: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=part, args=arguments, daemon=True).start()


def _send(connection: socket.socket, after_s: float) -> None:
    piece = bytes(PIECE_BYTES)
    time.sleep(after_s)
    connection.settimeout(None)
    with contextlib.suppress(OSError):  # the receiver has closed
        while True:
            connection.sendall(piece)


def _receive(connection: socket.socket, samples: Samples) -> None:
    buffer = bytearray(PIECE_BYTES)
    connection.settimeout(TICK_S)
    total = 0
    samples.append((time.monotonic(), 0))
    while True:
        with contextlib.suppress(TimeoutError):
            got = connection.recv_into(buffer)
            if not got:
                return
            total += got
        now = time.monotonic()
        if now >= samples[-1][0] + TICK_S:
            samples.append((now, total))


def _connect(there: tuple[str, int], tos: int) -> socket.socket:
    """Connect; retry until the other side listens."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        connection = socket.socket()
        connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        connection.settimeout(PATIENCE_S)
        try:
            connection.connect(there)
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
        time.sleep(TICK_S)


if __name__ == "__main__":
    main(
        [Flow(*fields) for fields in json.loads(sys.argv[1])],
        int(os.environ["RANK"]),
        os.environ[HOSTS].split(","),
        bytes.fromhex(os.environ[TOKEN]),
    )
