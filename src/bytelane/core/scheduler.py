"""The scheduler: events in (ready, finished), actions out (start).

It has no clock: ``now`` is an argument, kept only so that the log of events is a bug report that
can be replayed. :mod:`bytelane.core.kernel` decides what may start and when; the scheduler refuses
impossible events before they reach it.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from bytelane.core import kernel
from bytelane.core.kernel import State
from bytelane.core.plan import Plan
from bytelane.core.policy import Policy
from bytelane.core.table import plan_state, policy_state
from bytelane.errors import IllegalEvent
from bytelane.job import Job


class Event(NamedTuple):
    """A tensor is ready, or an operation has finished."""

    now: float
    kind: Literal["ready", "finish"]
    which: int


class Start(NamedTuple):
    """The instruction to launch an operation now."""

    operation: int
    now: float
    joined: bool = False
    """In the same message as the one before."""


class Scheduler:
    """One worker's decisions in one iteration; ``reset`` begins the next."""

    def __init__(self, state: State) -> None:
        self._arrays = state
        # Views of the same memory that yield plain numbers: several times faster per element.
        self._state = State(*map(memoryview, state))  # type: ignore[arg-type]
        self._queues = range(state.counters.shape[0])
        self._ready = [False] * state.operations_missing.size
        self.events: list[Event] = []
        self.reset()

    @classmethod
    def of_policy(cls, policy: Policy, job: Job) -> "Scheduler":
        """Decide as the policy says, without a fixed order."""
        return cls(policy_state(policy, job))

    @classmethod
    def of_plan(cls, plan: Plan, *, in_order: bool = True) -> "Scheduler":
        """Follow a plan: the same operations in the same order, when they are ready.

        If not ``in_order``, an operation need not wait for earlier ones that are not ready.
        """
        return cls(plan_state(plan, in_order=in_order))

    def reset(self) -> None:
        """Begin an iteration: nothing is ready, queued or in flight."""
        kernel.reset(self._arrays)
        self._ready = [False] * len(self._ready)
        self.events.clear()

    def resize(self, operation: int, size: int) -> None:
        """Let an operation have this many bytes from now on, if it is not ready yet."""
        if not 0 <= operation < self._arrays.size.size:
            raise IllegalEvent(f"there is no operation {operation}")
        if self._state.status[operation] != kernel.WAITING:
            raise IllegalEvent(f"operation {operation} was ready already, its size cannot change")
        if self._state.claim[operation] == self._state.size[operation]:
            self._arrays.claim[operation] = size  # unless it claims the whole window
        self._arrays.size[operation] = size

    def notify_ready(self, tensor: int, now: float) -> list[Start]:
        """Record that a gradient is complete; return the operations to launch."""
        return self.notify_all_ready((tensor,), now)

    def notify_all_ready(self, tensors: Iterable[int], now: float) -> list[Start]:
        """Record that these gradients are complete; decide once, after the last of them."""
        for tensor in tensors:
            if not 0 <= tensor < len(self._ready):
                raise IllegalEvent(f"there is no tensor {tensor}; there are {len(self._ready)}")
            if self._ready[tensor]:
                raise IllegalEvent(f"tensor {tensor} was ready already in this iteration")
            self._ready[tensor] = True
            self.events.append(Event(now, "ready", tensor))
            kernel.notify_ready(self._state, tensor)
        return self._starts(now)

    def notify_finish(self, operation: int, now: float) -> list[Start]:
        """Record that a transfer is over; return the operations to launch."""
        if not 0 <= operation < self._arrays.size.size:
            raise IllegalEvent(f"there is no operation {operation}")
        if self._state.status[operation] != kernel.STARTED:
            raise IllegalEvent(f"operation {operation} finished, but it is not in flight")
        self.events.append(Event(now, "finish", operation))
        kernel.notify_finish(self._state, operation)
        return self._starts(now)

    def is_synchronised(self, tensor: int) -> bool:
        """Tell whether every piece of the tensor has arrived."""
        missing: int = self._state.operations_missing[tensor]
        return missing == 0

    def is_ready(self, tensor: int) -> bool:
        """Tell whether the gradient of the tensor was reported complete in this iteration."""
        return self._ready[tensor]

    @property
    def synchronised(self) -> bool:
        """Tell whether every tensor has arrived."""
        return not self._arrays.operations_missing.any()

    @property
    def in_flight_bytes(self) -> int:
        return int(self._arrays.size[self._arrays.status == kernel.STARTED].sum())

    def _starts(self, now: float) -> list[Start]:
        starts = []
        for queue in self._queues:
            while (operation := kernel.start(self._state, queue)) != kernel.NOTHING:
                starts.append(Start(int(operation), now))
                room = self._state.counters[queue, kernel.FUSION] - self._state.size[operation]
                while (operation := kernel.join(self._state, queue, room)) != kernel.NOTHING:
                    starts.append(Start(int(operation), now, joined=True))
                    room -= self._state.size[operation]
        return starts
