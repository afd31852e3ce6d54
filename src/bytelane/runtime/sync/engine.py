"""The runtime's engine: launch the operations that a decider starts, and wait for their end.

Two kinds of threads call it: the one that trains (``notify_ready``, ``wait``) and those of the
transport, which report that a message is over. Both take the lock, tell the decider, and launch
what it starts. No thread polls, and the engine has no thread of its own: on a CPU it would compete
with the training thread for the interpreter.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from bytelane.core import Event, Plan, Scheduler, Start
from bytelane.errors import (
    OutOfMemory,
    PlanMismatch,
    TrainingError,
    TransferFailed,
    TransferInterrupted,
    TransferTimeout,
)
from bytelane.runtime.sync.operations import Operations
from bytelane.runtime.sync.peers import UnknownPeers, loss_while_waiting
from bytelane.runtime.sync.protocols import KnowsPeers, Message, Transfer, Transport

Clock = Callable[[], float]

# After each such wait a line says which ranks are awaited.
PATIENCE_S = 5.0
# How often, in each such wait, a rank looks whether its peers are lost.
LOOKS = 4


class Decider(Protocol):
    """Says what starts when tensors are ready or operations over; usually a plan's scheduler."""

    @property
    def events(self) -> list[Event]: ...

    def reset(self) -> None: ...

    def notify_all_ready(self, tensors: Iterable[int], now: float) -> list[Start]: ...

    def notify_finish(self, operation: int, now: float) -> list[Start]: ...

    def is_synchronised(self, tensor: int) -> bool: ...


class Engine:
    """Launches one rank's operations. ``begin_iteration`` makes it ready for the next round."""

    def __init__(
        self,
        decider: Decider,
        operations: Operations,
        transport: Transport,
        *,
        timeout_s: float,
        peers: KnowsPeers | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.transfers: list[Transfer] = []
        self.launched: list[int] = []
        self._decider = decider
        self.operations = operations
        self._transport = transport
        self._timeout_s = timeout_s
        self._peers = peers or UnknownPeers()
        self._clock = clock
        # Re-entrant: a transport that is already done may report inside the call that launches.
        self._changed = threading.Condition(threading.RLock())
        self._to_launch: deque[Message] = deque()
        self._launching = False
        self._launched_at: dict[Message, float] = {}
        self._waiting: list[Callable[[], bool]] = []
        """For each thread that waits: whether its condition holds."""
        self._failure: TrainingError | None = None

    @classmethod
    def of_plan(
        cls, plan: Plan, transport: Transport, names: tuple[str, ...], **settings: Any
    ) -> "Engine":
        """Launch the operations of a plan, in its order."""
        operations = Operations.of_plan(plan, names)
        return cls(Scheduler.of_plan(plan), operations, transport, **settings)

    def begin_iteration(self) -> None:
        """Reset for a new round; only when no operation is in flight."""
        with self._changed:
            self._raise_failure()
            if self._launched_at:
                raise PlanMismatch("an iteration began while operations were still in flight")
            self._decider.reset()
            self.transfers = []
            self.launched = []

    def notify_ready(self, *tensors: int) -> None:
        """Record that these gradients are complete; launch the operations that may start."""
        with self._changed:
            self._raise_failure()
            self._launch(self._decider.notify_all_ready(tensors, self._clock()))

    def launch_what(self, decide: Callable[[float], list[Start]]) -> None:
        """Launch what ``decide`` returns, on an event from outside. Called from any thread."""
        with self._changed:
            self._launch(decide(self._clock()))
            self._wake_up()

    @property
    def failure(self) -> TrainingError | None:
        """The error with which every call is refused; None if there was none."""
        return self._failure

    @property
    def events(self) -> list[Event]:
        """The events that the decider was told in this iteration."""
        return list(self._decider.events)

    def arrived(self, tensors: Iterable[int]) -> list[int]:
        """Return those among these tensors that are synchronised, without waiting."""
        with self._changed:
            self._raise_failure()
            return [t for t in tensors if self._decider.is_synchronised(t)]

    def wait(self, tensors: Iterable[int]) -> None:
        """Return when all of these tensors are synchronised, or raise the failure."""
        self._wait_until(tensors, self._decider.is_synchronised)

    def wait_for_launch(self, tensors: Iterable[int]) -> None:
        """Return when all operations of these tensors are launched, of all stages.

        If a stream runs them in that order, the host need not wait any longer.
        """
        self._wait_until(tensors, self._is_launched)

    def _is_launched(self, tensor: int) -> bool:
        if self._decider.is_synchronised(tensor):
            return True
        return set(self.operations.in_all_stages(tensor)) <= set(self.launched)

    def _wait_until(self, tensors: Iterable[int], is_there: Callable[[int], bool]) -> None:
        missing = set(tensors)

        def over() -> bool:
            missing.difference_update([t for t in missing if is_there(t)])
            return not missing or self._failure is not None

        with self._changed:
            if not self._wait_for(over):
                names = ", ".join(self.operations.names[t] for t in sorted(missing)[:3])
                self.fail(
                    TransferTimeout(
                        f"{names} did not arrive within {self._timeout_s:g} s; "
                        f"{self._peers.who_is_behind()}"
                    )
                )
            self._raise_failure()

    def _wait_for(self, over: Callable[[], bool]) -> bool:
        looks, step_s = 0, PATIENCE_S / LOOKS
        self._waiting.append(over)
        try:
            while not self._changed.wait_for(over, min(step_s, self._timeout_s - looks * step_s)):
                looks += 1
                if looks * step_s >= self._timeout_s:
                    return False
                if loss := loss_while_waiting(self._peers):
                    self.fail(loss)
                elif looks % LOOKS == 0:
                    self._peers.still_waiting(looks * step_s)
        except BaseException as error:  # Ctrl-C: exit handlers must not wait again
            self.fail(TransferInterrupted("waiting for other ranks was interrupted"))
            self._peers.report_failure(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._waiting.remove(over)
        return True

    def fail(self, error: TrainingError) -> None:
        """Refuse every call from now on, with this error."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def drain(self, limit_s: float) -> bool:
        """Tell whether all launched operations are over within this time, well or not."""

        def over() -> bool:
            return not self._launched_at

        with self._changed:
            self._waiting.append(over)
            try:
                return self._changed.wait_for(over, limit_s)
            finally:
                self._waiting.remove(over)

    def disown(self, error: TrainingError) -> None:
        """Refuse every call, in a forked child: the transport's threads are not there."""
        self._changed = threading.Condition(threading.RLock())  # one of them may hold the old lock
        self._failure = error

    def _launch(self, starts: list[Start]) -> None:
        self._to_launch.extend(_messages(starts))
        if self._launching:
            return  # the call further up this stack launches it
        self._launching = True
        try:
            while self._to_launch and self._failure is None:
                message = self._to_launch.popleft()
                self.launched += message
                self._launched_at[message] = self._clock()
                self._transport.start(message, self._finished)
        except Exception as error:
            self.fail(TransferFailed(f"could not launch an operation: {error}"))
            raise
        finally:
            self._launching = False

    def _finished(self, message: Message, error: Exception | None) -> None:
        with self._changed:
            now = self._clock()
            launched_at = self._launched_at.pop(message)
            if error is not None:
                self.fail(self._named(message, error))
                return
            self._peers.count_finished()
            for operation in message:
                self.transfers.append(Transfer(operation, launched_at, now))
                self._launch(self._decider.notify_finish(operation, now))
            self._wake_up()

    def _wake_up(self) -> None:
        # Wake threads only if one can go on: a vain wake-up takes the interpreter from this thread.
        if any(is_over() for is_over in self._waiting):
            self._changed.notify_all()

    def _named(self, message: Message, error: Exception) -> TrainingError:
        if isinstance(error, TrainingError):
            return error
        text = f"synchronising {self.operations.describe(message[0])} failed: {error}"
        # No other rank is to blame for that, so nothing has to be found out about them.
        return (OutOfMemory if isinstance(error, MemoryError) else TransferFailed)(text)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _messages(starts: list[Start]) -> list[Message]:
    """Group the starts by message."""
    messages: list[list[int]] = []
    for start in starts:
        if start.joined:
            messages[-1].append(start.operation)
        else:
            messages.append([start.operation])
    return [tuple(message) for message in messages]
