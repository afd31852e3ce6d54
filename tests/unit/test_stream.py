"""A framework whose work is done later, on streams, through the same synchroniser and engine."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.core import CreditWindow, Operation, Plan, SubTask
from bytelane.runtime.sync import Rounds, Synchroniser, Transfer, UnknownPeers
from bytelane.runtime.sync.protocols import Waits
from bytelane.testing import Stream, StreamTransport, WrongOrder

SIZES = (6, 4, 8)
STEPS = 3
NAMES = ("a", "b", "c")


def plan(part_bytes: int) -> Plan:
    """Send parts from the last tensor to the first, all of them at once."""
    operations = [
        Operation((SubTask(t, start, min(start + part_bytes, 8 * size)),))
        for t, size in reversed([*enumerate(SIZES)])
        for start in range(0, 8 * size, part_bytes)
    ]
    sizes = tuple(8 * size for size in SIZES)
    return Plan("stream", sizes, tuple(operations), CreditWindow(), barrier=False)


class StreamFramework:
    """The host never waits for the end of a sum: its compute stream does."""

    def __init__(
        self, compute: Stream, transport: Callable[[], StreamTransport], is_careful: bool
    ) -> None:
        self._compute = compute
        self._transport = transport
        self._is_careful = is_careful

    def plainly(self) -> Any:
        return nullcontext()

    undisturbed = interrupting_backward = plainly

    def in_backward(self) -> bool:
        return False

    def wait(self, engine: Waits, tensors: Sequence[int]) -> None:
        if self._is_careful:
            engine.wait_for_launch(tensors)
            self._transport().wait(tensors)

    def catch_up(self, engine: Waits) -> None:
        while not engine.drain(0.0):
            assert self._compute.advance() or self._transport().stream.advance(), "nothing gets on"

    def round_opened(self) -> None: ...

    def round_completed(self) -> None: ...

    def round_closed(self, plan: Plan, transfers: Sequence[Transfer]) -> None: ...


class Model:
    """Weights and gradients that only the compute stream touches."""

    names = NAMES
    signal = 0

    def __init__(self, compute: Stream) -> None:
        self.weights = [np.ones(size) for size in SIZES]
        self.gradients = [np.zeros(size) for size in SIZES]
        self.outputs: list[float] = []
        self._compute = compute

    def lend(self, tensor: int, used: bool) -> Any:
        return self.gradients[tensor]

    def lend_nothing(self, tensor: int) -> Any: ...

    def give_back(self, tensor: int, used: bool) -> None: ...

    def update(self, tensors: Sequence[int], used: Callable[[int], bool]) -> None:
        for tensor in tensors:
            self._compute.give(partial(self._step, tensor))

    def _step(self, tensor: int) -> None:
        self.weights[tensor] -= 0.1 * self.gradients[tensor]

    def forget(self, tensor: int) -> None: ...

    def next_plan(self, step: int, number: int, granted: int, unused: Any) -> Plan | None:
        return None

    # --- the loop -------------------------------------------------------------------------------

    def forward(self, tensor: int) -> None:
        self._compute.give(lambda: self.outputs.append(float(self.weights[tensor].sum())))

    def backward(self, tensor: int) -> None:
        def compute() -> None:
            self.gradients[tensor][:] = self.weights[tensor] * (tensor + 1)

        self._compute.give(compute)


OTHERS = [np.full(size, 0.5 * tensor) for tensor, size in enumerate(SIZES)]


def expected() -> list[float]:
    weights, outputs = [np.ones(size) for size in SIZES], []
    for _ in range(STEPS):
        outputs += [float(weight.sum()) for weight in weights]
        for tensor, weight in enumerate(weights):
            weight -= 0.1 * (weight * (tensor + 1) + OTHERS[tensor]) / 2
    return outputs


def train(part_bytes: int, chances: list[bool], is_careful: bool = True) -> list[float]:
    """Train; at the given chances one stream or the other gets on, the rest is done at the end."""
    compute, turns = Stream(), iter(chances)
    model, transports = Model(compute), list[StreamTransport]()

    def carry(plan: Plan) -> StreamTransport:
        transports.append(StreamTransport(plan, OTHERS, compute))
        return transports[-1]

    def get_on() -> None:
        for choice in turns:
            (compute if choice else transports[-1].stream).advance()
            return

    framework = StreamFramework(compute, lambda: transports[-1], is_careful)
    rounds = Rounds(carry, peers=UnknownPeers(), timeout_s=10)
    sync = Synchroniser(model, framework, rounds, plans=model, peers=UnknownPeers())
    sync.begin_with(plan(part_bytes))
    for _ in range(STEPS):
        for tensor in range(len(SIZES)):
            sync.settle([tensor])
            model.forward(tensor)
            get_on()
        for tensor in reversed(range(len(SIZES))):
            model.backward(tensor)
            sync.take(tensor)
            get_on()
        owed = sync.defer({0, 1, 2})
        model.update([t for t in range(len(SIZES)) if t not in owed], lambda t: True)
        sync.count_step()
    while compute.advance() or any(transport.stream.advance() for transport in transports):
        pass
    return model.outputs


@given(st.sampled_from([8, 24, 64]), st.lists(st.booleans(), max_size=60))
def test_whenever_the_streams_get_on_every_layer_sees_its_update(
    part_bytes: int, chances: list[bool]
) -> None:
    assert train(part_bytes, chances) == expected()


def test_who_does_not_wait_is_caught() -> None:
    with pytest.raises(WrongOrder, match="nothing has waited for it"):
        train(8, [], is_careful=False)


def test_what_was_not_taken_cannot_be_sent() -> None:
    transport = StreamTransport(plan(64), OTHERS, Stream())
    with pytest.raises(WrongOrder, match="was not taken"):
        transport.start((0,), lambda message, error: None)
    with pytest.raises(WrongOrder, match="was not launched"):
        transport.wait([0])
