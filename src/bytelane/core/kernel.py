"""The decisions, as plain functions on arrays.

Theory of operation
-------------------
An *operation* is what is sent in one go: a part of a tensor, a whole tensor, or several tensors
together. It passes through four stages, and only forward::

    WAITING ──(all its tensors are ready)──▶ QUEUED ──(first in the queue, and the window is open)
                                                                     │
    FINISHED ◀──(the transfer is known to be over)── STARTED ◀───────┘

* The queue gives out the least ``(priority, arrival)``. Equal priorities therefore leave in ready
  order: first in, first out needs no rule of its own.
* The window is open while the bytes in flight are *below* the credit. It may overshoot by less
  than one operation, and one operation may always start.
* ``in_order`` serves the runtime: operation k starts only after operation k-1, whatever is ready,
  because collectives must be launched in the same order everywhere.

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

# Where each number lives in State.counters.
QUEUE_LENGTH, ARRIVALS, IN_FLIGHT, CREDIT, IN_ORDER, STARTS = range(6)

NO_LIMIT = np.iinfo(np.int64).max
NOTHING = -1


class State(NamedTuple):
    """Everything the decisions depend on. Which tensors belong to which operation never changes."""

    # The table. Two sparse relations: operation -> tensors, and tensor -> operations.
    size: Ints
    priority: Ints
    tensors_from: Ints
    tensors: Ints
    operations_from: Ints
    operations: Ints
    # What changes.
    stage: Ints
    tensors_missing: Ints
    operations_missing: Ints
    queue: Ints
    arrival: Ints
    counters: Ints


def reset(state: State) -> None:
    """Forget the last iteration: nothing is ready, queued or in flight."""
    for operation in range(state.size.size):
        state.stage[operation] = WAITING
        state.tensors_missing[operation] = (
            state.tensors_from[operation + 1] - state.tensors_from[operation]
        )
    for tensor in range(state.operations_missing.size):
        state.operations_missing[tensor] = (
            state.operations_from[tensor + 1] - state.operations_from[tensor]
        )
    state.counters[QUEUE_LENGTH] = 0
    state.counters[ARRIVALS] = 0
    state.counters[IN_FLIGHT] = 0
    state.counters[STARTS] = 0


def notify_ready(state: State, tensor: int) -> None:
    """Queue the operations for which this tensor was the last one missing."""
    for i in range(state.operations_from[tensor], state.operations_from[tensor + 1]):
        operation = state.operations[i]
        state.tensors_missing[operation] -= 1
        if state.tensors_missing[operation] == 0:
            state.stage[operation] = QUEUED
            state.arrival[operation] = state.counters[ARRIVALS]
            state.counters[ARRIVALS] += 1
            _push(state, operation)


def start(state: State) -> int:
    """Take the operation that may start now out of the queue, or return NOTHING."""
    counters = state.counters
    if counters[QUEUE_LENGTH] == 0 or counters[IN_FLIGHT] >= counters[CREDIT]:
        return NOTHING
    first = state.queue[0]
    if counters[IN_ORDER] == 1 and first != counters[STARTS]:
        return NOTHING
    operation = _pop(state)
    state.stage[operation] = STARTED
    counters[IN_FLIGHT] += state.size[operation]
    counters[STARTS] += 1
    return operation


def notify_finish(state: State, operation: int) -> None:
    """Return the credit and count the operation off its tensors."""
    state.stage[operation] = FINISHED
    state.counters[IN_FLIGHT] -= state.size[operation]
    for i in range(state.tensors_from[operation], state.tensors_from[operation + 1]):
        state.operations_missing[state.tensors[i]] -= 1


def _before(state: State, a: int, b: int) -> bool:
    if state.priority[a] != state.priority[b]:
        return bool(state.priority[a] < state.priority[b])
    return bool(state.arrival[a] < state.arrival[b])


def _push(state: State, operation: int) -> None:
    # A binary heap by hand: heapq neither compiles on arrays nor orders by a key kept elsewhere.
    queue = state.queue
    place = state.counters[QUEUE_LENGTH]
    state.counters[QUEUE_LENGTH] += 1
    while place > 0:
        parent = (place - 1) // 2
        if not _before(state, operation, queue[parent]):
            break
        queue[place] = queue[parent]
        place = parent
    queue[place] = operation


def _pop(state: State) -> int:
    queue = state.queue
    top = int(queue[0])
    state.counters[QUEUE_LENGTH] -= 1
    length = state.counters[QUEUE_LENGTH]
    moved = queue[length]
    place = 0
    while 2 * place + 1 < length:
        child = 2 * place + 1
        if child + 1 < length and _before(state, queue[child + 1], queue[child]):
            child += 1
        if not _before(state, queue[child], moved):
            break
        queue[place] = queue[child]
        place = child
    queue[place] = moved
    return top
