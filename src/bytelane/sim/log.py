"""The simulator's log: arrays of the moments at which steps and transfers begin and end, in ticks.

Compiled together with the loop and a network; the rules of :mod:`bytelane.core.kernel` apply.
"""

from typing import NamedTuple

import numpy as np

from bytelane.core.kernel import Ints

NEVER = np.iinfo(np.int64).max


class Log(NamedTuple):
    """Moments in ticks. All but the first array keep only the last iterations, one per row."""

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
    """Iteration, operation; negative for a moment that did not happen."""
    rounds: Ints
    """Operation -> how often it was recorded: once per iteration."""


def record_transfer(
    log: Log,
    operation: int,
    launched: int,
    handling: int,
    handled: int,
    sending: int,
    sent: int,
    known: int,
) -> None:
    """Record the moments of an operation; a network calls this once for each, if any is kept.

    Operations of one message have the same moments.
    """
    kept = log.launched.shape[0]
    row = log.rounds[operation] - (log.iteration_start.shape[1] - 1 - kept)
    log.rounds[operation] += 1
    if row >= 0:
        log.launched[row, operation] = launched
        log.handling[row, operation] = handling
        log.handled[row, operation] = handled
        log.sending[row, operation] = sending
        log.sent[row, operation] = sent
        log.known[row, operation] = known
