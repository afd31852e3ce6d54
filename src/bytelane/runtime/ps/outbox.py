"""Decide which sum a parameter server sends next, per worker: the kernel, with acknowledged credit.

Every worker has a queue and a window of its own, because each is at the end of another connection.
A round begins for a worker when it has acknowledged all of the round before; sums of the next one
wait until then. They wait for acknowledgements that are on their way, not for the network: a worker
cannot push for the next round before it has taken every sum of this one.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bytelane.core.knobs import CreditWindow
from bytelane.core.plan import Operation, Plan
from bytelane.core.scheduler import Scheduler, Start
from bytelane.core.task import SubTask
from bytelane.runtime.ps.frames import Row
from bytelane.runtime.ps.round_sums import Misplaced


class Send(NamedTuple):
    """The instruction to send a worker the sum of an operation."""

    worker: int
    round: int
    operation: int


class _Sum(NamedTuple):
    operation: int
    size: int | None


class Outbox:
    """Queues of summed operations, one per worker, in the order of pulls."""

    def __init__(
        self,
        rows: Sequence[Row],
        workers: int,
        credit_bytes: int | None = None,
        *,
        straggler_first: bool = False,
    ) -> None:
        order = sorted(range(len(rows)), key=lambda operation: (rows[operation].place, operation))
        operations = tuple(Operation((SubTask(k, 0, rows[k].bytes),)) for k in order)
        sizes = tuple(row.bytes for row in rows)
        plan = Plan("outbox", sizes, operations, CreditWindow(credit_bytes), barrier=False)
        self._queues = [_Queue(worker, plan, order) for worker in range(workers)]
        self._straggler_first = straggler_first

    def summed(
        self, number: int, operation: int, pushed_bytes: Sequence[int], size: int | None = None
    ) -> list[Send]:
        """Queue a sum, of this size if that is not its row's; return what to send now.

        With ``straggler_first`` the worker that has pushed least goes first (CEFS): its next round
        begins last.
        """
        workers: Sequence[int] = range(len(self._queues))
        if self._straggler_first:
            workers = sorted(workers, key=pushed_bytes.__getitem__)
        sum_ = _Sum(operation, size)
        return [send for worker in workers for send in self._queues[worker].add(number, sum_)]

    def acknowledged(self, worker: int, number: int, operation: int) -> list[Send] | Misplaced:
        """Return credit; return what to send now."""
        return self._queues[worker].finish(number, operation)

    def in_flight_bytes(self, worker: int) -> int:
        """How much of what was sent to a worker is not acknowledged."""
        return self._queues[worker].scheduler.in_flight_bytes


class _Queue:
    """What one worker gets, round by round."""

    def __init__(self, worker: int, plan: Plan, order: Sequence[int]) -> None:
        self.scheduler = Scheduler.of_plan(plan, in_order=False)
        self._worker = worker
        self._order = order
        self._place = {operation: place for place, operation in enumerate(order)}
        self._round: int | None = None
        self._under_way: set[int] = set()
        self._missing = len(order)
        self._later: dict[int, list[_Sum]] = {}

    def add(self, number: int, one: _Sum) -> list[Send]:
        if self._round is None:
            self._round = number
        if number != self._round:
            self._later.setdefault(number, []).append(one)
            return []
        return self._ready([one])

    def finish(self, number: int, operation: int) -> list[Send] | Misplaced:
        if number != self._round or operation not in self._under_way:
            return Misplaced("a sum is acknowledged that was not sent")
        self._under_way.remove(operation)
        self._missing -= 1
        sends = self._started(self.scheduler.notify_finish(self._place[operation], 0.0))
        return sends if self._missing else self._next_round()

    def _next_round(self) -> list[Send]:
        self.scheduler.reset()
        self._missing = len(self._order)
        self._round = min(self._later, default=None)
        if self._round is None:
            return []
        return self._ready(self._later.pop(self._round))

    def _ready(self, sums: Sequence[_Sum]) -> list[Send]:
        for operation, size in sums:
            if size is not None:  # only touched rows, another number in every round
                self.scheduler.resize(self._place[operation], size)
        ready = [one.operation for one in sums]
        return self._started(self.scheduler.notify_all_ready(ready, 0.0))

    def _started(self, starts: Sequence[Start]) -> list[Send]:
        assert self._round is not None
        operations = [self._order[start.operation] for start in starts]
        self._under_way.update(operations)
        return [Send(self._worker, self._round, operation) for operation in operations]
