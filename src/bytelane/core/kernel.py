"""The scheduling kernel: queues, credit windows and latches, as plain functions on arrays.

Theory of operation
-------------------
An *operation* is what is sent in one go: a part of a tensor, a whole tensor, or several tensors
together. In every iteration its status moves through four values, and only forward::

    WAITING ──(its gradients and latches are there)──▶ QUEUED ──(first in its queue, window open)
                                                                     │
    FINISHED ◀──(the transfer is known to be over)── STARTED ◀───────┘

* Every operation belongs to a *queue*, which has an order and a window of its own. An all-reduce
  has one queue; a parameter server has one for pushes and one for pulls.
* A queue gives out its most urgent operation. Equally urgent ones stand in a *line* and leave in
  the order in which they came: first in, first out needs no rule of its own. A heap holds the
  urgencies whose line is not empty, so the parts of a tensor cost one place in it, not many.
* The window is open while the bytes in flight are *below* the credit. It may overshoot by less
  than one operation, and one operation may always start. One that is to be *alone* claims all of
  the window, whatever its size: nothing starts beside it, though something may still be under way.
* A *latch* opens when all operations that lead to it have finished, and then releases the
  operations behind it: a pull follows its push, an all-gather follows all reduce-scatters.
* ``IN_ORDER`` serves the runtime: operations of a queue, each of which has an urgency of its own,
  start in that order, whatever is ready, because collectives must be launched in the same order
  everywhere.
* ``LANES`` says that lanes have windows, too: the first operation of a queue also waits until the
  bytes in flight on its lane, from all queues together, are below the credit of the lane.
* ``FUSION`` is a buffer: the next operations join the message of the one just started while they
  fit.

Counters wind themselves up again: once everything has finished, the next iteration may begin.

This file is interpreted by the runtime and compiled for the simulator from the same text. It knows
no clock, no thread and no randomness, it imports nothing that a compiler would stumble over, and
it keeps to what numba's nopython mode understands. It trusts its caller; ``Scheduler`` is the
caller that checks.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

WAITING, QUEUED, STARTED, FINISHED = range(4)

# Where each number of a queue lives in its row of State.counters.
HEAP_LENGTH, IN_FLIGHT, STARTS, CREDIT, IN_ORDER, FUSION, LANES = range(7)

NO_LIMIT = np.iinfo(np.int64).max
# More than any credit that sets a limit, and no sum of bytes with it overflows.
ALL_OF_IT = 2**62
NOTHING = -1


class State(NamedTuple):
    """Everything the decisions depend on: a fixed table, then (from ``status``) what changes."""

    size: Ints
    claim: Ints
    """Operation -> how much of its queue's window it takes: its size, or all of it."""
    queue: Ints
    queue_from: Ints
    """Operations are numbered queue by queue; this is where each queue begins."""
    urgency: Ints
    line_from: Ints
    """Urgency -> where the line of its operations begins in the queue."""
    urgency_from: Ints
    """Urgencies are numbered queue by queue, the most urgent first; where each queue begins."""
    needed_from: Ints
    needed: Ints
    """Tensor -> the operations that wait for its gradient."""
    served_from: Ints
    served: Ints
    """Operation -> the tensors that it delivers, whole or in part."""
    latch: Ints
    """Operation -> the latch it leads to, or NOTHING."""
    released_from: Ints
    released: Ints
    """Latch -> the operations behind it."""
    waits_for: Ints
    """Operation -> how many gradients and latches it waits for."""
    carriers: Ints
    """Tensor -> how many operations deliver it."""
    lane: Ints
    """Operation -> the lane it is sent on; empty if no lane has a window."""
    openers: Ints
    """Latch -> how many operations lead to it."""

    status: Ints
    missing: Ints
    operations_missing: Ints
    openers_missing: Ints
    lines: Ints
    """Operations, line by line. A line that all of its operations have left begins again."""
    line_head: Ints
    line_length: Ints
    heap: Ints
    """Queue by queue: the urgencies whose line is not empty."""
    lane_counters: Ints
    """Lane -> IN_FLIGHT and CREDIT, in the columns that queues have them in."""
    counters: Ints


def reset(state: State) -> None:
    """Forget everything: nothing is ready, queued or in flight."""
    state.status[:] = WAITING
    state.missing[:] = state.waits_for
    state.operations_missing[:] = state.carriers
    state.openers_missing[:] = state.openers
    state.line_head[:] = 0
    state.line_length[:] = 0
    state.lane_counters[:, IN_FLIGHT] = 0
    state.counters[:, HEAP_LENGTH] = 0
    state.counters[:, IN_FLIGHT] = 0
    state.counters[:, STARTS] = 0


def notify_ready(state: State, tensor: int) -> None:
    """Record that a gradient is complete; queue the operations that waited only for it."""
    state.operations_missing[tensor] = state.carriers[tensor]
    for i in range(state.needed_from[tensor], state.needed_from[tensor + 1]):
        _wait_for_one_less(state, state.needed[i])


def start(state: State, queue: int) -> int:
    """Take the operation that may start now out of its queue, or return NOTHING."""
    counters = state.counters
    if counters[queue, HEAP_LENGTH] == 0 or counters[queue, IN_FLIGHT] >= counters[queue, CREDIT]:
        return NOTHING
    if counters[queue, LANES] == 1:
        lane = state.lane[_first(state, queue)]
        if state.lane_counters[lane, IN_FLIGHT] >= state.lane_counters[lane, CREDIT]:
            return NOTHING
    if counters[queue, IN_ORDER] == 1:
        first = state.urgency_from[queue]
        length = state.urgency_from[queue + 1] - first
        if state.heap[first] != first + counters[queue, STARTS] % length:
            return NOTHING
    return _take(state, queue)


def join(state: State, queue: int, room: int) -> int:
    """Take the next operation into the message just started if it fits, or return NOTHING."""
    if state.counters[queue, HEAP_LENGTH] == 0 or state.size[_first(state, queue)] > room:
        return NOTHING
    return _take(state, queue)


def notify_finish(state: State, operation: int) -> None:
    """Return the credit, count the delivery, and open the latch if this was its last operation."""
    state.status[operation] = FINISHED
    queue = state.queue[operation]
    state.counters[queue, IN_FLIGHT] -= state.claim[operation]
    if state.counters[queue, LANES] == 1:
        state.lane_counters[state.lane[operation], IN_FLIGHT] -= state.size[operation]
    for i in range(state.served_from[operation], state.served_from[operation + 1]):
        state.operations_missing[state.served[i]] -= 1
    latch = state.latch[operation]
    if latch == NOTHING:
        return
    state.openers_missing[latch] -= 1
    if state.openers_missing[latch] == 0:
        state.openers_missing[latch] = state.openers[latch]
        for i in range(state.released_from[latch], state.released_from[latch + 1]):
            _wait_for_one_less(state, state.released[i])


def _wait_for_one_less(state: State, operation: int) -> None:
    state.missing[operation] -= 1
    if state.missing[operation] == 0:
        state.missing[operation] = state.waits_for[operation]
        state.status[operation] = QUEUED
        _stand_in_line(state, operation)


def _stand_in_line(state: State, operation: int) -> None:
    # Every operation stands in line once per iteration, so there is room behind the last one.
    urgency = state.urgency[operation]
    last = state.line_head[urgency] + state.line_length[urgency]
    state.lines[state.line_from[urgency] + last] = operation
    state.line_length[urgency] += 1
    if state.line_length[urgency] == 1:
        _push(state, state.queue[operation], urgency)


def _first(state: State, queue: int) -> int:
    urgency = state.heap[state.urgency_from[queue]]
    return int(state.lines[state.line_from[urgency] + state.line_head[urgency]])


def _take(state: State, queue: int) -> int:
    operation = _first(state, queue)
    urgency = state.urgency[operation]
    state.line_head[urgency] += 1
    if state.line_head[urgency] == state.line_from[urgency + 1] - state.line_from[urgency]:
        state.line_head[urgency] = 0
    state.line_length[urgency] -= 1
    if state.line_length[urgency] == 0:
        _pop(state, queue)
    state.status[operation] = STARTED
    state.counters[queue, IN_FLIGHT] += state.claim[operation]
    if state.counters[queue, LANES] == 1:
        state.lane_counters[state.lane[operation], IN_FLIGHT] += state.size[operation]
    state.counters[queue, STARTS] += 1
    return operation


def _push(state: State, queue: int, urgency: int) -> None:
    # A binary heap by hand: heapq does not compile on arrays.
    heap = state.heap[state.urgency_from[queue] :]
    place = state.counters[queue, HEAP_LENGTH]
    state.counters[queue, HEAP_LENGTH] += 1
    while place > 0:
        parent = (place - 1) // 2
        if heap[parent] <= urgency:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = urgency


def _pop(state: State, queue: int) -> None:
    heap = state.heap[state.urgency_from[queue] :]
    state.counters[queue, HEAP_LENGTH] -= 1
    length = state.counters[queue, HEAP_LENGTH]
    moved = heap[length]
    place = 0
    while 2 * place + 1 < length:
        child = 2 * place + 1
        if child + 1 < length and heap[child + 1] < heap[child]:
            child += 1
        if moved <= heap[child]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = moved
