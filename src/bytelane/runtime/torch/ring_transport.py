"""Ring transport: each operation is a reduce-scatter, then an all-gather, on a ring of ranks.

An operation is a row of elements: its parts, end to end, and its piggyback. It is cut into slices
that go round one after the other. The sum of the piggyback reaches all ranks with the all-gather,
and is checked before that is reported to be over.
"""

import threading
import weakref
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from queue import SimpleQueue
from typing import Any

from bytelane.runtime.sync import Done, Message
from bytelane.runtime.torch.ring import Ring, cut
from bytelane.runtime.torch.transport import GradientTransport

# Slices at once: while one is summed, others are on the link; 2 left it idle on a busy machine.
AT_ONCE = 3
CHUNK_BYTES = 2**20

Tasks = SimpleQueue[Callable[[], None] | None]


class RingTransport(GradientTransport):
    """Two halves per operation, of transfers from neighbour to neighbour.

    In gloo sends and receives have no completion callbacks, so a few threads wait for them: in C++,
    without the interpreter's lock. They take slices in the order of the launches.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rings = [Ring(group) for group in self._groups]
        self._slices = []
        for ranges, piggyback in zip(self._ranges, self._piggybacks, strict=True):
            lengths = [stop - start for _, start, stop in ranges] + [piggyback.numbers.numel()]
            most = CHUNK_BYTES // piggyback.numbers.itemsize
            self._slices.append(cut(lengths, self._world, most))
        # Within a round every transfer has a tag of its own.
        self._first_tag = [0, *accumulate(len(slices) * self._world for slices in self._slices)]
        self._left: dict[int, int] = {}
        self._lock = threading.Lock()
        self._tasks = _start_threads(self)

    def start(self, message: Message, done: Done) -> None:
        """Launch one half of an operation; ``done`` is called from one of the threads."""
        (operation,) = message
        half, number = divmod(operation, len(self._slices))
        ring = self._rings[self._plan.operations[number].lane]
        row, slices = self._row(number), self._slices[number]
        if half == 0:
            self._write_piggyback(number)
        self._launched()
        self._left[operation] = len(slices)
        tag = self._first_tag[number] + half * self._first_tag[-1]
        for index, chunks in enumerate(slices):
            views = [[row[which][a:b] for which, a, b in chunk] for chunk in chunks]
            go_round = ring.all_gather if half else ring.reduce_scatter
            carry = partial(go_round, views, tag + index * self._world)
            self._tasks.put(partial(self._carry, operation, carry, done))

    def _carry(self, operation: int, carry: Callable[[], None], done: Done) -> None:
        error = None
        try:
            carry()
        except Exception as raised:
            error = raised
        if self._is_over(operation, error):
            half, number = divmod(operation, len(self._slices))
            done((operation,), error or (self._read_piggyback(number) if half else None))

    def _is_over(self, operation: int, error: Exception | None) -> bool:
        """Count a slice. The last one ends an operation, and so does the first that fails."""
        with self._lock:
            left = self._left.pop(operation, 0)
            if left > 1 and error is None:
                self._left[operation] = left - 1
                return False
            return left > 0


def _start_threads(owner: object) -> Tasks:
    """Start threads that run the tasks of a queue, as long as its owner lives."""
    tasks: Tasks = SimpleQueue()
    for number in range(AT_ONCE):
        # Daemons: exit must not wait for a rank that does not come.
        name = f"bytelane-ring-{number}"
        threading.Thread(target=_serve, args=(tasks,), name=name, daemon=True).start()
        weakref.finalize(owner, tasks.put, None).atexit = False
    return tasks


def _serve(tasks: Tasks) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it holds the owner
