"""Transports for tests: finished by the test, finished at once, or run by a simulated stream."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from bytelane.core import Plan, SubTask
from bytelane.runtime.sync import Contribution, Done, Message


class WrongOrder(AssertionError):
    """A tensor was used before the work that makes it was done."""


class ManualTransport:
    """Launched messages wait until the test finishes them."""

    signalled = 0

    def __init__(self) -> None:
        self.launched: list[Message] = []
        self._done: dict[Message, Done] = {}

    def begin_round(self, step: int, number: int, *, signal: int = 0) -> None: ...

    def take(self, contributions: Sequence[Contribution]) -> None: ...

    def start(self, message: Message, done: Done) -> None:
        self.launched.append(message)
        self._done[message] = done

    def finish(self, *message: int, error: Exception | None = None) -> None:
        """Report that a message is over."""
        self._done.pop(message)(message, error)

    def forget(self, tensor: int) -> None: ...

    def was_used(self, tensor: int) -> bool:
        return True


class ImmediateTransport(ManualTransport):
    """Reports the end inside the call that launches, as a finished future does."""

    def start(self, message: Message, done: Done) -> None:
        self.launched.append(message)
        done(message, None)


class Stream:
    """A simulated stream of an accelerator: work that is done later, in the order given."""

    def __init__(self) -> None:
        self._work: list[tuple[Callable[[], None], Callable[[], bool]]] = []
        self.given = self.done = 0

    def give(self, work: Callable[[], None], after: Callable[[], bool] = lambda: True) -> int:
        """Queue work, behind earlier work and behind a condition; return its place."""
        self._work.append((work, after))
        self.given += 1
        return self.given

    def advance(self) -> bool:
        """Do the next piece of work; tell whether that was possible."""
        if not self._work or not self._work[0][1]():
            return False
        work, _ = self._work.pop(0)
        work()
        self.done += 1
        return True

    def has_done(self, place: int) -> bool:
        return self.done >= place


class StreamTransport:
    """Sums on a stream, as an accelerator's library does: a launch returns before it has begun.

    The other rank is simulated: its gradients are arguments. Using a tensor is right only after
    :meth:`wait` has put later work behind it; a wrong order raises.
    """

    signalled = 0

    def __init__(self, plan: Plan, others: Sequence[np.ndarray], compute: Stream) -> None:
        self.stream = Stream()
        self._plan = plan
        self._others = others
        self._compute = compute
        self._made = 0
        self._held: dict[int, np.ndarray] = {}
        self._places: dict[int, int] = {}
        self._ordered: set[int] = set()

    def begin_round(self, step: int, number: int, *, signal: int = 0) -> None:
        self._places.clear()
        self._ordered.clear()

    def take(self, contributions: Sequence[Contribution]) -> None:
        for tensor, value, _ in contributions:
            self._held[tensor] = value
        # The work that the compute stream was given before makes the gradients.
        self._made = self._compute.given

    def start(self, message: Message, done: Done) -> None:
        made = self._made
        for operation in message:
            parts = self._plan.operations[operation].parts
            for part in parts:
                if part.tensor not in self._held:
                    raise WrongOrder(f"tensor {part.tensor} is sent, but was not taken")
            place = self.stream.give(
                partial(self._sum, parts), partial(self._compute.has_done, made)
            )
            self._places.update({part.tensor: place for part in parts})
        self.stream.give(lambda: done(message, None))

    def _sum(self, parts: Sequence[SubTask]) -> None:
        for tensor, start, stop in ((part.tensor, part.start, part.stop) for part in parts):
            mine, size = self._held[tensor], self._held[tensor].itemsize
            part = slice(start // size, stop // size)
            mine[part] = (mine[part] + self._others[tensor][part]) / 2

    def wait(self, tensors: Iterable[int]) -> None:
        """Put the work that the compute stream is given from now on behind these tensors."""
        for tensor in tensors:
            if tensor not in self._places:
                raise WrongOrder(f"tensor {tensor} is waited for, but was not launched")
            place = self._places[tensor]
            self._compute.give(_nothing, partial(self.stream.has_done, place))
            self._ordered.add(tensor)

    def forget(self, tensor: int) -> None:
        if tensor not in self._ordered:
            raise WrongOrder(f"tensor {tensor} is taken back, but nothing has waited for it")

    def was_used(self, tensor: int) -> bool:
        return True


def _nothing() -> None:
    pass
