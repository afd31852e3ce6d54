"""Virtual time: one worker's compute stream and one serial link, driven by the core's decisions.

All workers are equal, so one stands for all. The compute stream runs a fixed list of steps in
every iteration (L layers)::

    step  0      1       ...  2L-2       2L-1         2L             ...  3L-1       3L
          update forward ...  update     forward      backward       ...  backward   outside
          layer 0        ...  layer L-1               layer L-1      ...  layer 0

It waits only before an update: with a barrier until everything is synchronised, without one until
the tensors that this layer needs first are. Everything that happens at one instant is seen before
the scheduler chooses what to start.

Compiled from this text together with :mod:`bytelane.core.kernel`; the same rules apply.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bytelane.core.kernel import NOTHING, Ints, State, notify_finish, notify_ready, reset, start

Floats = npt.NDArray[np.float64]
Table = npt.NDArray[np.float64]  # two dimensions: iteration, step or operation

# Where each number lives in Now.times and Now.counters.
CLOCK, COMPUTE_END, LINK_FREE = range(3)
ITERATION, STEP, RUNNING, SENT, DELIVERED, UNSYNCHRONISED = range(6)


class Work(NamedTuple):
    """What an iteration consists of."""

    step_s: Floats
    """Duration of each step."""
    completes_from: Ints
    completes: Ints
    """Layer -> the tensors whose gradient its backward pass completes."""
    needed_by: Ints
    """Tensor -> the first layer that reads it."""
    send_s: Floats
    """Operation -> the time it occupies the link."""
    latency_s: float
    barrier: bool


class Now(NamedTuple):
    """Where the simulation stands."""

    times: Floats
    counters: Ints
    layer_missing: Ints
    flying: Ints
    """Operations in the order in which they went on the link."""
    known_at: Floats
    """When the end of each of them becomes known."""


class Log(NamedTuple):
    """What happened. The tables keep the last iterations only, as many as they have rows."""

    iteration_start: Floats
    step_start: Table
    step_end: Table
    launched: Table
    sending: Table
    sent: Table
    known: Table


def run(state: State, work: Work, now: Now, log: Log) -> None:
    """Simulate until the log holds the start of every iteration it has room for."""
    last = log.iteration_start.size - 1
    while True:
        while _deliver(state, work, now, log) or _compute(state, work, now, log):
            pass
        if now.counters[ITERATION] == last and now.counters[STEP] == 1:
            return
        _launch(state, work, now, log)
        now.times[CLOCK] = _next_instant(now)


def _next_instant(now: Now) -> float:
    earliest = np.inf
    if now.counters[RUNNING] == 1:
        earliest = now.times[COMPUTE_END]
    if now.counters[DELIVERED] < now.counters[SENT]:
        earliest = min(earliest, now.known_at[now.counters[DELIVERED]])
    if earliest == np.inf:
        raise RuntimeError("the simulation stands still: an operation waits for ever")
    return earliest


def _deliver(state: State, work: Work, now: Now, log: Log) -> bool:
    """Take note of one transfer whose end is known by now."""
    next_up = now.counters[DELIVERED]
    if next_up == now.counters[SENT] or now.known_at[next_up] > now.times[CLOCK]:
        return False
    operation = now.flying[next_up]
    now.counters[DELIVERED] += 1
    notify_finish(state, operation)
    for i in range(state.tensors_from[operation], state.tensors_from[operation + 1]):
        tensor = state.tensors[i]
        if state.operations_missing[tensor] == 0:
            now.layer_missing[work.needed_by[tensor]] -= 1
            now.counters[UNSYNCHRONISED] -= 1
    return True


def _compute(state: State, work: Work, now: Now, log: Log) -> bool:
    """End the running step if it is over, or begin the next one if it may begin."""
    if now.counters[RUNNING] == 1:
        if now.times[COMPUTE_END] > now.times[CLOCK]:
            return False
        _end_step(state, work, now)
        return True
    step = now.counters[STEP]
    layers = now.layer_missing.size
    if step < 2 * layers and step % 2 == 0 and _must_wait(work, now, step // 2):
        return False
    if step == 1:
        log.iteration_start[now.counters[ITERATION]] = now.times[CLOCK]
        if now.counters[ITERATION] == log.iteration_start.size - 1:
            return False
    now.counters[RUNNING] = 1
    now.times[COMPUTE_END] = now.times[CLOCK] + work.step_s[step]
    row = _row(now, log)
    if 0 <= row < log.step_start.shape[0]:
        log.step_start[row, step] = now.times[CLOCK]
        log.step_end[row, step] = now.times[COMPUTE_END]
    return True


def _must_wait(work: Work, now: Now, layer: int) -> bool:
    if work.barrier:
        return bool(now.counters[UNSYNCHRONISED] > 0)
    return bool(now.layer_missing[layer] > 0)


def _end_step(state: State, work: Work, now: Now) -> None:
    step = now.counters[STEP]
    layers = now.layer_missing.size
    now.counters[RUNNING] = 0
    now.counters[STEP] += 1
    if step == 2 * layers - 1:
        # Every gate has been passed, so every tensor has arrived: the table can be used again.
        reset(state)
        now.counters[SENT] = 0
        now.counters[DELIVERED] = 0
    elif 2 * layers <= step < 3 * layers:
        layer = 3 * layers - 1 - step
        for i in range(work.completes_from[layer], work.completes_from[layer + 1]):
            tensor = work.completes[i]
            now.layer_missing[work.needed_by[tensor]] += 1
            now.counters[UNSYNCHRONISED] += 1
            notify_ready(state, tensor)
    elif step == 3 * layers:
        now.counters[STEP] = 0
        now.counters[ITERATION] += 1


def _launch(state: State, work: Work, now: Now, log: Log) -> None:
    """Put on the link what the scheduler lets go."""
    row = _row(now, log)
    operation = start(state)
    while operation != NOTHING:
        begin = max(now.times[CLOCK], now.times[LINK_FREE])
        end = begin + work.send_s[operation]
        now.times[LINK_FREE] = end
        place = now.counters[SENT]
        now.flying[place] = operation
        now.known_at[place] = end + work.latency_s
        now.counters[SENT] += 1
        # In a forward pass the gradients are those of the iteration before.
        made_in = row - 1 if now.counters[STEP] < 2 * now.layer_missing.size else row
        if made_in >= 0:
            log.launched[made_in, operation] = now.times[CLOCK]
            log.sending[made_in, operation] = begin
            log.sent[made_in, operation] = end
            log.known[made_in, operation] = end + work.latency_s
        operation = start(state)


def _row(now: Now, log: Log) -> int:
    """Which row of the log this iteration has; negative if it is not kept."""
    iterations = log.iteration_start.size - 1
    kept = log.step_start.shape[0]
    return int(now.counters[ITERATION] - (iterations - kept))
