"""The times of one contender of ``bench`` or arm of ``try``, and how far repetitions spread."""

from statistics import median
from typing import Generic, TypeVar

import msgspec

from bytelane.core import Knobs
from bytelane.trace import Trace

# Above this the machine was not quiet enough for the figure to be believed.
QUIET_SPREAD = 0.03

Runner = TypeVar("Runner")


class Overlay(msgspec.Struct, frozen=True):
    """A typical iteration and the one after it, predicted and real."""

    predicted: Trace
    real: Trace


class Cell(msgspec.Struct, Generic[Runner], frozen=True):
    """The times and the final weights of one contender."""

    contender: Runner
    times_s: tuple[tuple[float, ...], ...] = ()
    """Repetition -> every iteration that counts, of the slowest rank."""
    exact: bool | None = None
    """Whether every weight is as expected; None where nothing is synchronised."""
    predicted_s: float | None = None
    """Simulated iteration time, from the job and the link as measured."""
    knobs: Knobs | None = None
    overlay: Overlay | None = None
    failure: str = ""
    """Why it could not run here."""

    @property
    def repetitions_s(self) -> list[float]:
        return [median(times) for times in self.times_s]

    @property
    def iteration_s(self) -> float:
        """The median over the repetitions of the median over their iterations."""
        return median(self.repetitions_s)

    @property
    def spread(self) -> float:
        """Slowest to fastest repetition, as a fraction of the median."""
        return (max(self.repetitions_s) - min(self.repetitions_s)) / self.iteration_s

    @property
    def is_quiet(self) -> bool:
        return self.spread <= QUIET_SPREAD
