"""Iterations of the steady state, cut out of the log.

Without jitter all are alike, and the last one that was seen to its end is enough. With jitter there
are as many as were measured, and callers take means.
"""

from typing import NamedTuple

from bytelane.errors import InputError
from bytelane.sim.engine import KEPT, Simulation
from bytelane.sim.layout import Floats


class Steady(NamedTuple):
    """One worker's iteration and what it sent; seconds since its forward pass began."""

    iteration_s: float
    step_start: Floats
    step_end: Floats
    """Step of this iteration; see :mod:`bytelane.sim.kernel` for their order."""
    next_start: Floats
    next_end: Floats
    """Step of the following iteration."""
    launched: Floats
    sending: Floats
    sent: Floats
    known: Floats
    """Stage, operation. All are NaN where nothing has to be sent."""


def steady(found: Simulation, worker: int = 0, back: int = 0) -> Steady:
    """Return a worker's iteration: its computing, and the transfers of the gradients it made.

    It is the last one that was seen to its end, or the one ``back`` before it.
    """
    if found.log is None:
        raise InputError(
            "the optimum is a bound, not a schedule: it has neither transfers nor slack"
        )
    log, own = found.log.last(KEPT, back), simulated_worker(found, worker)
    start, end = log.iteration_start[own, -3:-1].tolist()
    return Steady(
        end - start,
        log.step_start[-2, own] - start,
        log.step_end[-2, own] - start,
        log.step_start[-1, own] - start,
        log.step_end[-1, own] - start,
        *(
            by_stage(found, moments[-2:-1], worker)[0] - start
            for moments in (log.launched, log.sending, log.sent, log.known)
        ),
    )


def whole_iterations(found: Simulation) -> int:
    """Return how many iterations were seen to their end: one, or with jitter all measured ones."""
    return 1 if found.log is None else found.log.step_start.shape[0] - KEPT + 1


def by_stage(found: Simulation, moments: Floats, worker: int) -> Floats:
    """Take a worker's operations out of a column of the log: iteration, stage, operation."""
    # With a parameter server each simulated worker has operations of its own.
    own_ones = found.cluster.sync == "ps"
    assert found.log is not None
    copies = found.log.iteration_start.shape[0] if own_ones else 1
    copy = simulated_worker(found, worker) if own_ones else 0
    shape = (moments.shape[0], len(found.schedule.stages), copies, found.pieces.operation_count)
    return moments.reshape(shape)[:, :, copy]


def simulated_worker(found: Simulation, worker: int) -> int:
    """Return the number of the simulated worker: equal workers are simulated as one."""
    if not 0 <= worker < found.cluster.workers:
        raise InputError(
            f"there is no worker {worker}; they are numbered 0 to {found.cluster.workers - 1}"
        )
    assert found.log is not None
    return worker if found.log.iteration_start.shape[0] > 1 else 0
