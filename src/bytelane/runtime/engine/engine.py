"""Carry out a plan on the wall clock.

Two kinds of threads come in here: the one that trains (``notify_ready``, ``wait``) and those of the
transport, which report that an operation is over. Both take the lock, tell the scheduler, and
launch what it answers. Nobody polls and there is no thread of our own: on a CPU it would fight the
training thread for the interpreter.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from bytelane.core import Event, Plan, Scheduler, Start, Transport
from bytelane.errors import (
    PlanMismatch,
    TrainingError,
    TransferFailed,
    TransferTimeout,
)

Clock = Callable[[], float]

# Whoever waits longer than this is told for whom.
PATIENCE_S = 5.0


class Transfer(NamedTuple):
    """One operation that is over."""

    operation: int
    launched_at: float
    finished_at: float


class Decider(Protocol):
    """Says what starts when something is ready or over; usually a scheduler that has the plan."""

    @property
    def events(self) -> list[Event]: ...

    def reset(self) -> None: ...

    def notify_all_ready(self, tensors: Iterable[int], now: float) -> list[Start]: ...

    def notify_finish(self, operation: int, now: float) -> list[Start]: ...

    def is_synchronised(self, tensor: int) -> bool: ...


class Engine:
    """One rank's side of a plan. ``begin_iteration`` makes it ready for the next round."""

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        *,
        tensor_names: tuple[str, ...],
        timeout_s: float,
        scheduler: Decider | None = None,
        clock: Clock = time.perf_counter,
        finished: Callable[[], None] = lambda: None,
        still_waiting: Callable[[float], None] = lambda waited_s: None,
        who_is_behind: Callable[[], str] = lambda: "another rank is slow, or does something else",
    ) -> None:
        self.plan = plan
        self.transfers: list[Transfer] = []
        self.launched: list[int] = []
        self._transport = transport
        self._names = tensor_names
        self._timeout_s = timeout_s
        self._clock = clock
        self._count_finished = finished
        self._still_waiting = still_waiting
        self._who_is_behind = who_is_behind
        self._scheduler: Decider = scheduler or Scheduler.of_plan(plan)
        # Re-entrant: a transport that is already done may report inside the call that launches.
        self._changed = threading.Condition(threading.RLock())
        self._to_launch: deque[int] = deque()
        self._launching = False
        self._launched_at: dict[int, float] = {}
        self._first_operation, self._last_operation = _reach(plan)
        self._unready = set(range(len(plan.tensor_bytes)))
        self._waiting: list[Callable[[], bool]] = []
        """Of each thread that waits: whether it has waited long enough."""
        self._failure: TrainingError | None = None

    def begin_iteration(self) -> None:
        """Start over; only when everything that was ready has arrived."""
        with self._changed:
            self._raise_failure()
            if self._launched_at:
                raise PlanMismatch("an iteration began while operations were still in flight")
            self._scheduler.reset()
            self._unready = set(range(len(self.plan.tensor_bytes)))
            self.transfers = []
            self.launched = []

    def notify_ready(self, *tensors: int) -> None:
        """These gradients are complete: launch what may go."""
        with self._changed:
            self._raise_failure()
            starts = self._scheduler.notify_all_ready(tensors, self._clock())
            self._unready.difference_update(tensors)
            self._launch(starts)

    def launch_what(self, decide: Callable[[float], list[Start]]) -> None:
        """Launch what this decides now: somebody else has news. Called from any thread."""
        with self._changed:
            self._launch(decide(self._clock()))

    @property
    def failure(self) -> TrainingError | None:
        """Why everything is refused, if it is."""
        return self._failure

    @property
    def events(self) -> list[Event]:
        """What the scheduler was told in this iteration."""
        return list(self._scheduler.events)

    def arrived(self, tensors: Iterable[int]) -> list[int]:
        """Return those among these tensors that are synchronised, without waiting."""
        with self._changed:
            self._raise_failure()
            return [t for t in tensors if self._scheduler.is_synchronised(t)]

    def wait(self, tensors: Iterable[int]) -> None:
        """Return when all of these tensors are synchronised; raise what went wrong instead."""
        missing = set(tensors)

        def over() -> bool:
            missing.difference_update([t for t in missing if self._scheduler.is_synchronised(t)])
            return not missing or self._failure is not None

        with self._changed:
            if not self._wait_for(over):
                names = ", ".join(self._names[t] for t in sorted(missing)[:3])
                self.fail(
                    TransferTimeout(
                        f"{names} did not arrive within {self._timeout_s:g} s; "
                        f"{self._who_is_behind()}"
                    )
                )
            self._raise_failure()

    def _wait_for(self, over: Callable[[], bool]) -> bool:
        waited_s = 0.0
        self._waiting.append(over)
        try:
            while not self._changed.wait_for(over, min(PATIENCE_S, self._timeout_s - waited_s)):
                waited_s += PATIENCE_S
                if waited_s >= self._timeout_s:
                    return False
                self._still_waiting(waited_s)
        except BaseException:  # Ctrl-C: nobody shall wait once more at exit
            self.fail(TransferFailed("waiting for other ranks was interrupted"))
            raise
        finally:
            self._waiting.remove(over)
        return True

    def unready(self) -> list[int]:
        """Return the tensors whose gradients are missing in this iteration."""
        with self._changed:
            return sorted(self._unready)

    def unready_before(self, tensors: Iterable[int]) -> list[int]:
        """Return whose gradients must come before these tensors can be synchronised.

        Operations are launched in plan order, so all gradients up to a tensor's last operation must
        be there, or simply all if nothing is gathered before; it is the waiting thread that makes
        them.
        """
        with self._changed:
            if not self._unready:
                return []
            last = max((self._last_operation[tensor] for tensor in tensors), default=-1)
            return sorted(t for t in self._unready if self._first_operation[t] <= last)

    def fail(self, error: TrainingError) -> None:
        """Refuse everything from now on, with this error."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def drain(self, limit_s: float) -> bool:
        """Tell whether all that was launched is over within this time, well or not."""

        def over() -> bool:
            return not self._launched_at

        with self._changed:
            self._waiting.append(over)
            try:
                return self._changed.wait_for(over, limit_s)
            finally:
                self._waiting.remove(over)

    def disown(self, error: TrainingError) -> None:
        """Refuse everything, in a forked child: the threads that would answer are not there."""
        self._changed = threading.Condition(threading.RLock())  # one of them may hold the other
        self._failure = error

    def _launch(self, starts: list[Start]) -> None:
        self._to_launch.extend(start.operation for start in starts)
        if self._launching:
            return  # the call further up this stack goes on with it
        self._launching = True
        try:
            while self._to_launch and self._failure is None:
                operation = self._to_launch.popleft()
                self.launched.append(operation)
                self._launched_at[operation] = self._clock()
                self._transport.start(operation, self._finished)
        except Exception as error:
            self.fail(TransferFailed(f"could not launch an operation: {error}"))
            raise
        finally:
            self._launching = False

    def _finished(self, operation: int, error: Exception | None) -> None:
        with self._changed:
            now = self._clock()
            launched_at = self._launched_at.pop(operation)
            if error is not None:
                self.fail(self._named(operation, error))
                return
            self._count_finished()
            self.transfers.append(Transfer(operation, launched_at, now))
            self._launch(self._scheduler.notify_finish(operation, now))
            # Nobody is woken up in vain: that would take the interpreter from this thread.
            if any(is_over() for is_over in self._waiting):
                self._changed.notify_all()

    def _named(self, operation: int, error: Exception) -> TrainingError:
        if isinstance(error, TrainingError):
            return error
        first = self.plan.operations[operation % len(self.plan.operations)].parts[0]
        return TransferFailed(f"synchronising {self._names[first.tensor]} failed: {error}")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _reach(plan: Plan) -> tuple[dict[int, int], dict[int, int]]:
    """Return each tensor's first operation, and the last one it waits for: its own, or of all."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, operation in enumerate(plan.operations):
        for part in operation.parts:
            first.setdefault(part.tensor, number)
            last[part.tensor] = len(plan.operations) if plan.gather_order else number
    return first, last
