"""Virtual time: compute streams and serial links, driven by the core's decisions.

Equal workers all do the same at the same time, so one stands for all; workers that differ are
simulated each. A worker's compute stream runs a fixed list of steps in every iteration (L layers)::

    step  0      1       ...  2L-2       2L-1         2L             ...  3L-1       3L
          update forward ...  update     forward      backward       ...  backward   outside
          layer 0        ...  layer L-1               layer L-1      ...  layer 0

It waits only before an update: with a barrier until everything is synchronised, without one until
the tensors that this layer needs first are. Everything that happens at one instant is seen before
the scheduler chooses what to start.

Times are whole numbers of ticks: what ought to happen at one instant does, and no iteration differs
from another by rounding.

Tensors are numbered worker by worker. Compiled from this text together with
:mod:`bytelane.core.kernel`; the same rules apply.
"""

from typing import NamedTuple

import numpy as np

from bytelane.core.kernel import (
    FUSION,
    NOTHING,
    Ints,
    State,
    join,
    notify_finish,
    notify_ready,
    start,
)

# Messages under way on a link, of which one is leaving it and one is handled: gloo has two threads.
# Not to be turned: ``_launch`` remembers two ends.
AT_ONCE = 2
FIRST_FORWARD = 1
NEVER = np.iinfo(np.int64).max

# Where each number of a worker lives in its row of Now.counters.
ITERATION, STEP, RUNNING, UNSYNCHRONISED = range(4)


class Work(NamedTuple):
    """What an iteration consists of."""

    step_ticks: Ints
    """Iteration, worker, step -> duration. A shorter list of iterations is repeated."""
    completes_from: Ints
    completes: Ints
    """Layer -> the tensors whose gradient its backward pass completes."""
    needed_by: Ints
    """Tensor -> the first layer that reads it."""
    send_ticks: Ints
    """Operation -> the time it occupies its link."""
    overhead_ticks: Ints
    """Lane -> how much of that is saved by travelling in another operation's message."""
    floor_ticks: Ints
    """Lane -> how long it takes to handle a message, while bytes of another may leave."""
    link: Ints
    """Lane -> the link it uses."""
    latency_ticks: int
    barrier: bool
    mark: int
    """The step from whose start to its next start an iteration is counted."""


class Now(NamedTuple):
    """Where the simulation stands."""

    clock: Ints
    compute_end: Ints
    link_free: Ints
    handler_free: Ints
    """Link -> when the last of its messages is handled: one is, after the other."""
    over_at: Ints
    """Link -> when the last but one and the last of its messages are over."""
    counters: Ints
    layer_missing: Ints
    flying: Ints
    known_at: Ints
    """A ring in each lane's stretch: operations in the order in which they went on the link."""
    oldest: Ints
    newest: Ints
    flights: Ints
    """Lane -> the place of the first in its ring, the place behind the last, and their number."""
    rounds: Ints
    """Operation -> how often it went on the link: once an iteration."""


class Log(NamedTuple):
    """What happened. All but the first keep the last iterations only, as many as they have rows."""

    iteration_start: Ints
    """Worker, iteration; negative until it has begun."""
    step_start: Ints
    step_end: Ints
    """Iteration, worker, step."""
    launched: Ints
    handling: Ints
    handled: Ints
    sending: Ints
    sent: Ints
    known: Ints
    """Iteration, operation; negative for what did not happen."""


def run(state: State, work: Work, now: Now, log: Log) -> None:
    """Simulate until the log holds the start of every iteration it has room for."""
    earliest = 0
    while earliest != NEVER:
        now.clock[0] = earliest
        for lane in range(now.flights.size):
            _deliver(state, work, now, lane)
        for worker in range(now.compute_end.size):
            _compute(state, work, now, log, worker)
        for lane in range(now.flights.size):
            _launch(state, work, now, log, lane)
        earliest = _next_instant(now)


def _next_instant(now: Now) -> int:
    earliest = NEVER
    for worker in range(now.compute_end.size):
        if now.counters[worker, RUNNING] == 1:
            earliest = min(earliest, now.compute_end[worker])
    for lane in range(now.flights.size):
        if now.flights[lane] > 0:
            earliest = min(earliest, now.known_at[now.oldest[lane]])
    return earliest


def _deliver(state: State, work: Work, now: Now, lane: int) -> None:
    """Take note of the transfers whose end is known by now."""
    while now.flights[lane] > 0 and now.known_at[now.oldest[lane]] <= now.clock[0]:
        operation = now.flying[now.oldest[lane]]
        now.oldest[lane] = _behind(state, lane, now.oldest[lane])
        now.flights[lane] -= 1
        notify_finish(state, operation)
        for i in range(state.served_from[operation], state.served_from[operation + 1]):
            tensor = state.served[i]
            if state.operations_missing[tensor] == 0:
                worker = tensor // work.needed_by.size
                layer = work.needed_by[tensor % work.needed_by.size]
                now.layer_missing[worker, layer] -= 1
                now.counters[worker, UNSYNCHRONISED] -= 1


def _behind(state: State, lane: int, place: int) -> int:
    """Return the next place in a lane's ring."""
    return int(place + 1 if place + 1 < state.lane_from[lane + 1] else state.lane_from[lane])


def _compute(state: State, work: Work, now: Now, log: Log, worker: int) -> None:
    """Go on with the steps of a worker as far as this instant allows."""
    clock = now.clock[0]
    while True:
        if now.counters[worker, RUNNING] == 1:
            if now.compute_end[worker] > clock:
                return
            _end_step(state, work, now, worker)
        step = now.counters[worker, STEP]
        layers = now.layer_missing.shape[1]
        if step < 2 * layers and step % 2 == 0 and _must_wait(work, now, worker, step // 2):
            return
        iteration = now.counters[worker, ITERATION]
        last = log.iteration_start.shape[1] - 1
        if step == work.mark and log.iteration_start[worker, iteration] < 0:
            log.iteration_start[worker, iteration] = clock
        if step == work.mark and iteration == last:
            return
        now.counters[worker, RUNNING] = 1
        now.compute_end[worker] = (
            clock + work.step_ticks[iteration % work.step_ticks.shape[0], worker, step]
        )
        kept = log.step_start.shape[0]
        row = iteration - (last - kept)
        if 0 <= row < kept:
            log.step_start[row, worker, step] = clock
            log.step_end[row, worker, step] = now.compute_end[worker]


def _must_wait(work: Work, now: Now, worker: int, layer: int) -> bool:
    if work.barrier:
        return bool(now.counters[worker, UNSYNCHRONISED] > 0)
    return bool(now.layer_missing[worker, layer] > 0)


def _end_step(state: State, work: Work, now: Now, worker: int) -> None:
    counters = now.counters[worker]
    step = counters[STEP]
    layers = now.layer_missing.shape[1]
    counters[RUNNING] = 0
    counters[STEP] += 1
    if 2 * layers <= step < 3 * layers:
        layer = 3 * layers - 1 - step
        for i in range(work.completes_from[layer], work.completes_from[layer + 1]):
            tensor = work.completes[i]
            now.layer_missing[worker, work.needed_by[tensor]] += 1
            counters[UNSYNCHRONISED] += 1
            notify_ready(state, worker * work.needed_by.size + tensor)
    elif step == 3 * layers:
        counters[STEP] = 0
        counters[ITERATION] += 1


def _launch(state: State, work: Work, now: Now, log: Log, lane: int) -> None:
    """Put on the link what the scheduler lets go, in one message what may be fused."""
    operation = start(state, lane)
    while operation != NOTHING:
        link = work.link[lane]
        ready = max(now.clock[0], now.over_at[link, 0])
        length = work.send_ticks[operation]
        first, together = now.newest[lane], 0
        room = state.counters[lane, FUSION] - state.size[operation]
        while operation != NOTHING:
            now.flying[now.newest[lane]] = operation
            now.newest[lane] = _behind(state, lane, now.newest[lane])
            together += 1
            operation = join(state, lane, room)
            if operation != NOTHING:
                room -= state.size[operation]
                length += work.send_ticks[operation] - work.overhead_ticks[lane]
        handling, sending = max(ready, now.handler_free[link]), max(ready, now.link_free[link])
        handled, sent = handling + work.floor_ticks[lane], sending + length
        now.handler_free[link] = handled
        now.link_free[link] = sent
        now.over_at[link, 0] = now.over_at[link, 1]
        now.over_at[link, 1] = max(handled, sent)
        known = max(handled, sent) + work.latency_ticks
        now.flights[lane] += together
        for _ in range(together):
            now.known_at[first] = known
            if log.launched.shape[0] > 0:
                _write_down(now, log, now.flying[first], handling, handled, sending, sent, known)
            first = _behind(state, lane, first)
        operation = start(state, lane)


def _write_down(
    now: Now,
    log: Log,
    operation: int,
    handling: int,
    handled: int,
    sending: int,
    sent: int,
    known: int,
) -> None:
    kept = log.launched.shape[0]
    row = now.rounds[operation] - (log.iteration_start.shape[1] - 1 - kept)
    now.rounds[operation] += 1
    if row >= 0:
        log.launched[row, operation] = now.clock[0]
        log.handling[row, operation] = handling
        log.handled[row, operation] = handled
        log.sending[row, operation] = sending
        log.sent[row, operation] = sent
        log.known[row, operation] = known
