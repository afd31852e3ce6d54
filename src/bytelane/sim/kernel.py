"""The simulator's loop: compute streams and a network in virtual time, driven by the core.

Equal workers all do the same at the same time, so one stands for all; workers that differ are
simulated each. A worker's compute stream runs a fixed list of steps in every iteration (L layers)::

    step  0      1       ...  2L-2       2L-1         2L             ...  3L-1       3L
          update forward ...  update     forward      backward       ...  backward   outside
          layer 0        ...  layer L-1               layer L-1      ...  layer 0

It waits only before an update: with a barrier until all tensors are synchronised, without one until
those are that this layer is the first to need. All events of one instant are seen before the
scheduler chooses what to start.

Times are whole numbers of ticks: simultaneous events stay simultaneous, and no iteration differs
from another by rounding.

Tensors are numbered worker by worker. Compiled from this text together with a network (see
:mod:`bytelane.sim.network`) and :mod:`bytelane.core.kernel`; the same rules apply.
"""

from typing import NamedTuple

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
from bytelane.sim.log import NEVER, Log
from bytelane.sim.network.serial import (
    Flights,
    Network,
    advance,
    arrived,
    next_arrival,
    transmit,
)

FIRST_FORWARD = 1

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
    barrier: bool
    mark: int
    """The step from whose start to its next start an iteration is counted."""


class Now(NamedTuple):
    """The simulation's clock, and the progress of each worker."""

    clock: Ints
    compute_end: Ints
    counters: Ints
    layer_missing: Ints
    message: Ints
    """Room for the operations that travel together."""


def run(state: State, work: Work, now: Now, network: Network, flights: Flights, log: Log) -> None:
    """Simulate until the log holds the start of every iteration it has room for."""
    queues = state.counters.shape[0]
    earliest = 0
    while earliest != NEVER:
        now.clock[0] = earliest
        advance(network, flights, earliest)
        for queue in range(queues):
            _deliver(state, work, now, network, flights, queue)
        for worker in range(now.compute_end.size):
            _compute(state, work, now, log, worker)
        for queue in range(queues):
            _launch(state, now, network, flights, log, queue)
        earliest = _next_end(now, next_arrival(network, flights))


def _next_end(now: Now, earliest: int) -> int:
    """Return when the next step of computing ends, or ``earliest`` if that is sooner."""
    for worker in range(now.compute_end.size):
        if now.counters[worker, RUNNING] == 1:
            earliest = min(earliest, now.compute_end[worker])
    return earliest


def _deliver(
    state: State, work: Work, now: Now, network: Network, flights: Flights, queue: int
) -> None:
    """Record the transfers whose end is known by now."""
    operation = arrived(network, flights, state, now.clock[0], queue)
    while operation != NOTHING:
        notify_finish(state, operation)
        for i in range(state.served_from[operation], state.served_from[operation + 1]):
            tensor = state.served[i]
            if state.operations_missing[tensor] == 0:
                worker = tensor // work.needed_by.size
                layer = work.needed_by[tensor % work.needed_by.size]
                now.layer_missing[worker, layer] -= 1
                now.counters[worker, UNSYNCHRONISED] -= 1
        operation = arrived(network, flights, state, now.clock[0], queue)


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


def _launch(
    state: State, now: Now, network: Network, flights: Flights, log: Log, queue: int
) -> None:
    """Send the operations that the scheduler starts; those that it fuses travel in one message."""
    operation = start(state, queue)
    while operation != NOTHING:
        count, room = 0, state.counters[queue, FUSION]
        while operation != NOTHING:
            now.message[count] = operation
            count += 1
            room -= state.size[operation]
            operation = join(state, queue, room)
        transmit(network, flights, state, log, now.clock[0], queue, now.message, count)
        operation = start(state, queue)
