"""Three layers of NumPy, trained on two processes by the synchroniser: no torch anywhere.

``python numpy_training.py RANK STEPS CONNECTION`` is a rank with an open socket to the other. It
prints a digest of its weights, how often updates were owed after a step, and if torch was loaded.
"""

import hashlib
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from bytelane.core import CreditWindow, Operation, Plan, SubTask
from bytelane.runtime.sync import (
    Contribution,
    Done,
    Message,
    Rounds,
    Synchroniser,
    UnknownPeers,
)
from bytelane.runtime.sync.protocols import Waits

SHAPES = ((16, 64), (64, 32), (32, 8))
RATE = 0.05
Array = np.ndarray[Any, np.dtype[np.float32]]


def initial_weights() -> list[Array]:
    chance = np.random.default_rng(7)
    return [chance.normal(size=shape).astype(np.float32) / 8 for shape in SHAPES]


def batch(rank: int, step: int) -> tuple[Array, Array]:
    chance = np.random.default_rng([rank, step])
    return tuple(chance.normal(size=(4, n)).astype(np.float32) for n in (16, 8))  # type: ignore[return-value]


def plan() -> Plan:
    """Cut every tensor in two, and send the first layer first."""
    sizes = tuple(4 * rows * columns for rows, columns in SHAPES)
    halves = [(t, a, b) for t, n in enumerate(sizes) for a, b in ((0, n // 2), (n // 2, n))]
    operations = tuple(Operation((SubTask(*half),)) for half in reversed(halves))
    return Plan("by hand", sizes, operations, CreditWindow(4096), barrier=False)


class SocketTransport:
    """Every rank sends its part to every other one; all add up in the order of ranks.

    Before a part come two bytes: whether this rank has used the tensor, and its signal.
    """

    signalled = 0

    def __init__(self, plan: Plan, rank: int, peers: dict[int, socket.socket]) -> None:
        self._plan, self._rank, self._peers = plan, rank, peers
        self._held: dict[int, Contribution] = {}
        self._queue: SimpleQueue[tuple[Message, Done]] = SimpleQueue()
        threading.Thread(target=self._carry, daemon=True).start()

    def begin_round(self, step: int, number: int, *, signal: int = 0) -> None:
        self._signal, self.signalled, self._used = signal, 0, set[int]()

    def take(self, contributions: Sequence[Contribution]) -> None:
        self._held |= {contribution.tensor: contribution for contribution in contributions}

    def start(self, message: Message, done: Done) -> None:
        self._queue.put((message, done))

    def forget(self, tensor: int) -> None:
        del self._held[tensor]

    def was_used(self, tensor: int) -> bool:
        return tensor in self._used

    def _carry(self) -> None:
        while True:
            message, done = self._queue.get()
            for operation in message:
                for part in self._plan.operations[operation].parts:
                    self._sum(self._held[part.tensor], slice(part.start // 4, part.stop // 4))
            done(message, None)

    def _sum(self, mine: Contribution, part: slice) -> None:
        row = mine.value.reshape(-1)[part]
        data = bytes([mine.used, self._signal]) + row.tobytes()
        for peer in self._peers.values():
            peer.sendall(data)
        everyone = {rank: receive(peer, len(data)) for rank, peer in self._peers.items()}
        in_order = [data for _, data in sorted({**everyone, self._rank: data}.items())]
        row[:] = mean([np.frombuffer(data[2:], np.float32) for data in in_order])
        self._used |= {mine.tensor for data in in_order if data[0]}
        self.signalled = max(self.signalled, *(data[1] for data in in_order))


def mean(rows: Sequence[Array]) -> Array:
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total / np.float32(len(rows))


def receive(peer: socket.socket, size: int) -> bytes:
    return peer.recv(size, socket.MSG_WAITALL)


class NumpyFramework:
    """No modes, no autograd, nothing to guard: the thread that trains waits."""

    def plainly(self) -> Any:
        return nullcontext()

    undisturbed = interrupting_backward = plainly

    def in_backward(self) -> bool:
        return False

    def wait(self, engine: Waits, tensors: Sequence[int]) -> None:
        engine.wait(tensors)

    def round_opened(self, *_: Any) -> None: ...

    catch_up = round_completed = round_closed = round_opened


class Model:
    """Its weights; an arrived gradient means a step of plain SGD."""

    names = ("first", "second", "third")
    signal = 0

    def __init__(self) -> None:
        self.weights = initial_weights()
        self.gradients: list[Array | None] = [None] * len(SHAPES)

    def lend(self, tensor: int, used: bool) -> Array:
        gradient = self.gradients[tensor]
        return self.lend_nothing(tensor) if gradient is None else gradient

    def lend_nothing(self, tensor: int) -> Array:
        return np.zeros(SHAPES[tensor], np.float32)

    def give_back(self, tensor: int, used: bool) -> None: ...

    def update(self, tensors: Sequence[int], used: Callable[[int], bool]) -> None:
        for tensor in tensors:
            gradient = self.gradients[tensor]
            assert gradient is not None
            self.weights[tensor] -= RATE * gradient

    def forget(self, tensor: int) -> None: ...

    def next_plan(self, step: int, number: int, granted: int, unused: Any) -> Plan | None:
        return None


def run(model: Model, rank: int, step: int, before: Any, after: Any) -> None:
    """Do a forward and a backward pass; tell before a layer is used, and after its gradient."""
    x, wanted = batch(rank, step)
    activations = [x]
    for layer in range(len(SHAPES)):
        before(layer)
        activations.append(np.tanh(activations[-1] @ model.weights[layer]))
    error = activations[-1] - wanted
    for layer in reversed(range(len(SHAPES))):
        error = error * (1 - activations[layer + 1] ** 2)
        model.gradients[layer] = activations[layer].T @ error
        error = error @ model.weights[layer].T
        after(layer)


def main(rank: int, steps: int, connection: int) -> None:
    model, crossed = Model(), 0
    with socket.socket(fileno=connection) as peer:
        carry, unknown = partial(SocketTransport, rank=rank, peers={1 - rank: peer}), UnknownPeers()
        rounds = Rounds(carry, peers=unknown, timeout_s=30)
        sync = Synchroniser(model, NumpyFramework(), rounds, plans=model, peers=unknown)
        sync.begin_with(plan())
        for step in range(steps):
            run(model, rank, step, lambda layer: sync.settle([layer]), sync.take)
            owed = sync.defer({0, 1, 2})
            crossed += bool(owed)
            model.update([t for t in range(3) if t not in owed], lambda t: True)
            sync.count_step()
        sync.flush()
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.weights)).hexdigest()
    print(digest, crossed, "torch" in sys.modules)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
