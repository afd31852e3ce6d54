"""Another framework through the same synchroniser: NumPy on two processes, over sockets."""

import hashlib
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import numpy_training
from bytelane.core import Plan
from bytelane.runtime.sync import Transport
from bytelane.testing import TransportContract
from numpy_training import RATE, SHAPES, Model, SocketTransport, mean, run

STEPS = 30
SCRIPT = Path(numpy_training.__file__)
_lock = threading.Lock()
_ends: list[socket.socket] = []


def connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def trained_by_one_process() -> str:
    """Average the gradients of both ranks in the order of ranks, and step with that."""
    models = [Model(), Model()]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            run(model, rank, step, lambda layer: None, lambda layer: None)
        for layer in range(len(SHAPES)):
            both = [np.asarray(model.gradients[layer]) for model in models]
            average = mean([gradient.reshape(-1) for gradient in both]).reshape(SHAPES[layer])
            for model in models:
                model.weights[layer] -= RATE * average
    return hashlib.sha256(b"".join(w.tobytes() for w in models[0].weights)).hexdigest()


def test_it_crosses_the_barrier_and_equals_one_process_to_the_last_bit() -> None:
    ends = connection()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(STEPS), str(end.fileno())],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[end.fileno()],
        )
        for rank, end in enumerate(ends)
    ]
    for end in ends:
        end.close()
    try:
        printed = [rank.communicate(timeout=100)[0].split() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    for digest, crossed, has_torch in printed:
        assert digest == trained_by_one_process()
        assert int(crossed) > 0
        assert has_torch == "False"


def test_it_is_written_in_two_hundred_lines() -> None:
    assert len(SCRIPT.read_text().splitlines()) <= 200


class TestSocketTransport(TransportContract):
    """The socket transport of these tests keeps the contract."""

    def connect(self, plan: Plan, rank: int) -> Transport:
        with _lock:
            if not _ends:
                _ends.extend(socket.socketpair())
            return SocketTransport(plan, rank, {1 - rank: _ends.pop()})

    def _mean(self, tensor: int, number: int) -> Any:
        return mean([self._mine(tensor, rank, number) for rank in range(self.world)])
