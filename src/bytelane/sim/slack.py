"""Network slack: how much time a tensor's transfer has, and how much of it is left on arrival.

A tensor's life, on one worker, goes from the backward pass of one iteration into the next forward
pass::

    ready ───────── on the link ─────────▶ arrived ──── slack ────▶ used
    ready ──────────── budget ───────────────▶ needed ── waiting ──▶ used

*Needed* is when everything before its first use has been computed, and *used* is when that use
begins: at the same moment, unless computing had to wait in between. With a barrier nothing is
computed before all tensors are there, so all of them are needed when the forward pass could begin.

The *budget*, from ready to needed, is what the literature calls the network slack that a layer
has: a transfer may take that long without delaying any layer. The *slack*, from arrived to used, is
what was left of it: the tensor could have come that much later at no cost. It is zero exactly for
those tensors that computing waited for, or that came at the last moment.

With jitter every iteration is a life of its own, and the moments are their means.
"""

from typing import NamedTuple

import numpy as np

from bytelane.core.kernel import Ints
from bytelane.sim.engine import Simulation
from bytelane.sim.layout import Floats
from bytelane.sim.steady import Steady, steady, whole_iterations


class Slack(NamedTuple):
    """Columns with one row per tensor or per layer; seconds since the forward pass began."""

    layer: Ints
    """The layer that uses it first."""
    ready_s: Floats
    arrived_s: Floats
    needed_s: Floats
    used_s: Floats
    spread_s: Floats
    """Standard deviation of the slack over iterations; zero without jitter."""

    @property
    def budget_s(self) -> Floats:
        return self.needed_s - self.ready_s

    @property
    def slack_s(self) -> Floats:
        return self.used_s - self.arrived_s

    @property
    def waiting_s(self) -> Floats:
        """How long computing stood still before that use, for whatever reason."""
        return self.used_s - self.needed_s


def tensor_slack(found: Simulation, worker: int = 0) -> Slack:
    """Return the moments and slack of every tensor, in the job's order."""
    return _mean(_lives(found, worker))


def layer_slack(found: Simulation, worker: int = 0) -> Slack:
    """Return them for every layer that is the first to use a tensor: its tensors together."""
    return _mean([_by_layer(found, tensors) for tensors in _lives(found, worker)])


def _mean(lives: list[Slack]) -> Slack:
    _, *moments, _ = zip(*lives, strict=True)
    ready, arrived, needed, used = (np.mean(column, axis=0) for column in moments)
    spread = np.std([life.slack_s for life in lives], axis=0)
    return Slack(lives[0].layer, ready, arrived, needed, used, spread)


def _lives(found: Simulation, worker: int) -> list[Slack]:
    """Return the tensors' lives in each iteration that was seen whole."""
    iterations = range(whole_iterations(found))
    return [_tensors_in(found, steady(found, worker, back)) for back in iterations]


def _tensors_in(found: Simulation, one: Steady) -> Slack:
    layers, layer = len(found.job.layers), found.job.columns.needed_by
    ready = one.step_end[3 * layers - 1 - found.job.columns.complete_after]
    # The end of the step before each layer's update: of the iteration before, or a forward.
    before = np.concatenate([one.step_end[-1:], one.next_end[1 : 2 * layers - 1 : 2]])
    opens = np.zeros_like(layer) if found.schedule.barrier else layer
    arrived, used = _arrived(found, one, ready), one.next_start[2 * opens]
    return Slack(layer, ready, arrived, before[opens], used, np.zeros_like(ready))


def _by_layer(found: Simulation, tensors: Slack) -> Slack:
    layer, row = np.unique(tensors.layer, return_index=True)
    arrived = np.full(len(found.job.layers), -np.inf)
    np.maximum.at(arrived, tensors.layer, tensors.arrived_s)
    # All tensors of a layer are ready, needed and used together.
    ready, needed, used = tensors.ready_s[row], tensors.needed_s[row], tensors.used_s[row]
    return Slack(layer, ready, arrived[layer], needed, used, np.zeros_like(ready))


def _arrived(found: Simulation, one: Steady, ready: Floats) -> Floats:
    """A tensor has arrived when the last operation that carries some of it is known to be over."""
    if not found.cluster.wire_factor:
        return ready
    arrived = np.full(ready.size, -np.inf)
    np.maximum.at(arrived, found.pieces.tensor, one.known[-1, found.pieces.operation])
    return arrived
