"""The decisions, as plain functions on arrays.

Theory of operation
-------------------
An *operation* is what is sent in one go: a part of a tensor, a whole tensor, or several tensors
together. In every iteration it passes through four stages, and only forward::

    WAITING ──(all it waits for is there)──▶ QUEUED ──(first in its queue, and the window is open)
                                                                     │
    FINISHED ◀──(the transfer is known to be over)── STARTED ◀───────┘

* Every operation belongs to a *lane*: a queue and a window of its own. An all-reduce has one; a
  parameter server has one for pushes and one for pulls.
* A queue gives out the most urgent operation. Equally urgent ones stand in a line of their own and
  leave in the order in which they came: first in, first out needs no rule of its own. A heap holds
  the urgencies whose line is not empty, so the parts of a tensor cost one place in it, not many.
* The window is open while the bytes in flight are *below* the credit. It may overshoot by less
  than one operation, and one operation may always start. One that is to be *alone* claims all of
  the window, whatever its size: nothing starts beside it, though something may still be under way.
* A *gate* opens when all operations that lead to it have finished, and then releases those behind
  it: a pull follows its push, an all-gather follows all reduce-scatters.
* ``IN_ORDER`` serves the runtime: operations of a lane, each of which has an urgency of its own,
  start in that order, whatever is ready, because collectives must be launched in the same order
  everywhere.
* ``FUSION`` is a buffer: what is started may be joined by those behind it while they fit.

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

# Where each number of a lane lives in its row of State.counters.
HEAP_LENGTH, IN_FLIGHT, STARTS, CREDIT, IN_ORDER, FUSION = range(6)

NO_LIMIT = np.iinfo(np.int64).max
# More than any credit that sets a limit, and no sum of bytes with it overflows.
ALL_OF_IT = 2**62
NOTHING = -1


class State(NamedTuple):
    """Everything the decisions depend on. The table above never changes; what is below does."""

    size: Ints
    claim: Ints
    """Operation -> how much of its lane's window it takes: its size, or all of it."""
    lane: Ints
    lane_from: Ints
    """Operations are numbered lane by lane; this is where each lane begins."""
    urgency: Ints
    line_from: Ints
    """Urgency -> where the line of its operations begins in the queue."""
    urgency_from: Ints
    """Urgencies are numbered lane by lane, the most urgent first; where each lane begins."""
    needed_from: Ints
    needed: Ints
    """Tensor -> the operations that wait for its gradient."""
    served_from: Ints
    served: Ints
    """Operation -> the tensors that it brings home, or a part of them."""
    gate: Ints
    """Operation -> the gate it leads to, or NOTHING."""
    released_from: Ints
    released: Ints
    """Gate -> the operations behind it."""
    waits_for: Ints
    """Operation -> how many gradients and gates it waits for."""
    servers: Ints
    """Tensor -> how many operations bring it home."""
    openers: Ints
    """Gate -> how many operations lead to it."""

    stage: Ints
    missing: Ints
    operations_missing: Ints
    openers_missing: Ints
    queue: Ints
    """Operations, line by line. A line that all have left begins again at its first place."""
    line_head: Ints
    line_length: Ints
    heap: Ints
    """Lane by lane: the urgencies that have someone in line."""
    counters: Ints


def reset(state: State) -> None:
    """Forget everything: nothing is ready, queued or in flight."""
    state.stage[:] = WAITING
    state.missing[:] = state.waits_for
    state.operations_missing[:] = state.servers
    state.openers_missing[:] = state.openers
    state.line_head[:] = 0
    state.line_length[:] = 0
    state.counters[:, HEAP_LENGTH] = 0
    state.counters[:, IN_FLIGHT] = 0
    state.counters[:, STARTS] = 0


def notify_ready(state: State, tensor: int) -> None:
    """Take note that a gradient is complete: operations may have waited for just this one."""
    state.operations_missing[tensor] = state.servers[tensor]
    for i in range(state.needed_from[tensor], state.needed_from[tensor + 1]):
        _wait_for_one_less(state, state.needed[i])


def start(state: State, lane: int) -> int:
    """Take the operation that may start now out of the lane's queue, or return NOTHING."""
    counters = state.counters
    if counters[lane, HEAP_LENGTH] == 0 or counters[lane, IN_FLIGHT] >= counters[lane, CREDIT]:
        return NOTHING
    if counters[lane, IN_ORDER] == 1:
        first = state.urgency_from[lane]
        length = state.urgency_from[lane + 1] - first
        if state.heap[first] != first + counters[lane, STARTS] % length:
            return NOTHING
    return _take(state, lane)


def join(state: State, lane: int, room: int) -> int:
    """Take the next operation along with the one just started if it fits, or return NOTHING."""
    if state.counters[lane, HEAP_LENGTH] == 0 or state.size[_first(state, lane)] > room:
        return NOTHING
    return _take(state, lane)


def notify_finish(state: State, operation: int) -> None:
    """Return the credit, bring tensors home, and open the gate if this was the last to it."""
    state.stage[operation] = FINISHED
    state.counters[state.lane[operation], IN_FLIGHT] -= state.claim[operation]
    for i in range(state.served_from[operation], state.served_from[operation + 1]):
        state.operations_missing[state.served[i]] -= 1
    gate = state.gate[operation]
    if gate == NOTHING:
        return
    state.openers_missing[gate] -= 1
    if state.openers_missing[gate] == 0:
        state.openers_missing[gate] = state.openers[gate]
        for i in range(state.released_from[gate], state.released_from[gate + 1]):
            _wait_for_one_less(state, state.released[i])


def _wait_for_one_less(state: State, operation: int) -> None:
    state.missing[operation] -= 1
    if state.missing[operation] == 0:
        state.missing[operation] = state.waits_for[operation]
        state.stage[operation] = QUEUED
        _stand_in_line(state, operation)


def _stand_in_line(state: State, operation: int) -> None:
    # Everybody stands in line once an iteration, so there is room behind the last.
    urgency = state.urgency[operation]
    last = state.line_head[urgency] + state.line_length[urgency]
    state.queue[state.line_from[urgency] + last] = operation
    state.line_length[urgency] += 1
    if state.line_length[urgency] == 1:
        _push(state, state.lane[operation], urgency)


def _first(state: State, lane: int) -> int:
    urgency = state.heap[state.urgency_from[lane]]
    return int(state.queue[state.line_from[urgency] + state.line_head[urgency]])


def _take(state: State, lane: int) -> int:
    operation = _first(state, lane)
    urgency = state.urgency[operation]
    state.line_head[urgency] += 1
    if state.line_head[urgency] == state.line_from[urgency + 1] - state.line_from[urgency]:
        state.line_head[urgency] = 0
    state.line_length[urgency] -= 1
    if state.line_length[urgency] == 0:
        _pop(state, lane)
    state.stage[operation] = STARTED
    state.counters[lane, IN_FLIGHT] += state.claim[operation]
    state.counters[lane, STARTS] += 1
    return operation


def _push(state: State, lane: int, urgency: int) -> None:
    # A binary heap by hand: heapq does not compile on arrays.
    heap = state.heap[state.urgency_from[lane] :]
    place = state.counters[lane, HEAP_LENGTH]
    state.counters[lane, HEAP_LENGTH] += 1
    while place > 0:
        parent = (place - 1) // 2
        if heap[parent] <= urgency:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = urgency


def _pop(state: State, lane: int) -> None:
    heap = state.heap[state.urgency_from[lane] :]
    state.counters[lane, HEAP_LENGTH] -= 1
    length = state.counters[lane, HEAP_LENGTH]
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
