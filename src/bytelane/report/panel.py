"""Compute the numbers of a timeline panel: the steady state, repeated for every iteration."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bytelane.core.kernel import Ints
from bytelane.sim import Simulation
from bytelane.sim.accounts import Messages, messages
from bytelane.sim.layout import Floats
from bytelane.sim.slack import Slack, layer_slack
from bytelane.sim.spans import steps
from bytelane.sim.steady import Steady, steady
from bytelane.trace import Kind


class Step(NamedTuple):
    """A step of computing; seconds since the first iteration that is shown began."""

    kind: Kind
    name: str
    start_s: float
    end_s: float


class Panel(NamedTuple):
    """One simulation, ready to be drawn: a line for each layer that uses a tensor first."""

    found: Simulation
    one: Steady
    slack: Slack
    sent: Messages
    periods_s: Floats
    """Start of each iteration shown, and of the one before, whose transfers may still be on the
    link."""

    @classmethod
    def of(cls, found: Simulation, iterations: int) -> "Panel":
        one = steady(found)
        periods_s = np.arange(-1.0, iterations) * one.iteration_s
        return cls(found, one, layer_slack(found), messages(found), periods_s)

    @property
    def lines(self) -> int:
        return self.slack.layer.size

    @property
    def end_s(self) -> float:
        """End of the forward pass that uses the last tensors shown."""
        last = 2 * len(self.found.job.layers) - 1
        return float(self.periods_s[-1] + self.one.next_end[last])

    @property
    def stages(self) -> list[str]:
        return [stage.collective for stage in self.found.schedule.stages]

    def repeated(self, moments_s: Floats) -> Floats:
        """Return these moments for every iteration shown."""
        return np.add.outer(self.periods_s, moments_s).ravel()

    def each_time(self, values: Floats | Ints) -> Floats:
        """Return values that all iterations share, once per iteration."""
        return np.tile(values.astype(np.float64), self.periods_s.size)

    def steps(self) -> list[Step]:
        """Return the steps of computing, with the forward pass that follows the last iteration.

        Steps that take no time are included: there may be a wait before them.
        """
        one, described = self.one, list(steps(self.found.job))
        forward = 2 * len(self.found.job.layers)
        starts = [*self.repeated(one.step_start), *one.next_start[:forward] + self.periods_s[-1]]
        ends = [*self.repeated(one.step_end), *one.next_end[:forward] + self.periods_s[-1]]
        names = described * self.periods_s.size + described[:forward]
        return [
            Step(kind, name, float(start), float(end))
            for (kind, name, _), start, end in zip(names, starts, ends, strict=True)
        ]

    def blocks(self) -> tuple[Ints, Ints, Ints]:
        """Return operations with the first and last line of each; lines side by side are one."""
        pieces, job = self.found.pieces, self.found.job
        line = np.searchsorted(self.slack.layer, job.columns.needed_by[pieces.tensor])
        operation, line = np.unique(np.stack([pieces.operation, line]), axis=1)
        goes_on = (operation[1:] == operation[:-1]) & (line[1:] == line[:-1] + 1)
        first = np.flatnonzero(np.append(True, ~goes_on)[: line.size])
        last = np.flatnonzero(np.append(~goes_on, True)[: line.size])
        return operation[first], line[first], line[last]


def waits(computed: list[Step]) -> list[tuple[float, float]]:
    """Return the gaps in computing, as starts and ends."""
    # Where iterations that are shifted by a period meet, rounding leaves gaps.
    least_s = 1e-9 * (computed[-1].end_s - computed[0].start_s)
    gaps = ((step.end_s, after.start_s) for step, after in pairwise(computed))
    return [(start, end) for start, end in gaps if end - start > least_s]


def rate_over_time(starts_s: Floats, ends_s: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """Return the moments at which the rate changes, and the bytes per second from each of them on.

    A message's bytes are spread evenly over the time that it occupies the link.
    """
    real = ends_s > starts_s
    starts_s, ends_s, sizes = starts_s[real], ends_s[real], sizes[real]
    speed = sizes / (ends_s - starts_s)
    moments, place = np.unique(np.concatenate([starts_s, ends_s]), return_inverse=True)
    change = np.bincount(place, np.concatenate([speed, -speed]), moments.size)
    return moments, np.maximum(change.cumsum(), 0.0)
