"""Attribute the time of an iteration to stages and layers. Pure: marks in, seconds out.

A mark names the part that begins at a moment, so the parts always add up to the whole iteration.

* Forward: a moment belongs to the call whose gate was passed last. Work between two modules
  with parameters (an activation, a pooling) counts for the first of them.
* Backward: a moment belongs to the uppermost call that is not done yet. So the sum over all calls
  from the last one down to some call is the moment at which its gradients are complete, which the
  scheduler needs.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import Literal, NamedTuple

import msgspec

Stage = Literal["load", "copy", "forward", "loss", "backward", "update", "other"]
Kind = Literal[Stage, "gate", "done", "end"]
# In the order in which an iteration goes through them.
STAGES: tuple[Stage, ...] = ("load", "copy", "forward", "loss", "backward", "update", "other")


class Mark(NamedTuple):
    """A moment at which a part begins; within backward, at which a call is done."""

    kind: Kind
    at_s: float
    call: int = 0
    """Which call of a module, for "gate" and "done"; the loss counts as the call after the last."""


class Part(NamedTuple):
    """A stage, or one call in it; only forward and backward are divided by calls."""

    stage: Stage
    call: int = 0


class Slice(NamedTuple):
    """The time of a part, and the number of marks set in it."""

    seconds: float
    marks: int


class Measured(msgspec.Struct, frozen=True):
    """A time that was measured several times."""

    median_s: float
    spread_s: float
    """Between the quartiles."""


def divide(marks: Sequence[Mark]) -> dict[Part, Slice]:
    """Divide the time from the first mark to the last; every moment belongs to one part."""
    parts: dict[Part, Slice] = {}
    for part, (begin, end) in zip(_owners(marks), pairwise(marks), strict=True):
        before = parts.get(part, Slice(0.0, 0))
        parts[part] = Slice(before.seconds + end.at_s - begin.at_s, before.marks + 1)
    return parts


def typical(
    observed: Sequence[Mapping[Part, Slice]], unobserved_s: Sequence[float], mark_s: float
) -> dict[Part, Measured]:
    """Divide the median of the unobserved iterations as the observed ones were divided.

    The cost of its marks, ``mark_s`` each, is subtracted from each part first. Medians of many
    parts add up to less than the median of the sums, since a disturbance hits another part
    each time; so they are scaled to fit.
    """
    parts = dict.fromkeys(part for one in observed for part in one)
    nothing = Slice(0.0, 0)
    times = {part: [_without(one.get(part, nothing), mark_s) for one in observed] for part in parts}
    medians = {part: median(values) for part, values in times.items()}
    together = sum(medians.values())
    if not together and mark_s:
        return typical(observed, unobserved_s, 0.0)
    scale = median(unobserved_s) / together if together else 1.0
    return {
        part: Measured(scale * medians[part], scale * measured(values).spread_s)
        for part, values in times.items()
    }


def mark_cost(observed: Sequence[Mapping[Part, Slice]], unobserved_s: Sequence[float]) -> float:
    """Return how much longer observed iterations take, per mark.

    The quickest ones are compared, since they were disturbed least.
    """
    overhead_s = min(total(one) for one in observed) - min(unobserved_s)
    marks = median(sum(part.marks for part in one.values()) for one in observed)
    return max(0.0, overhead_s) / marks


def total(parts: Mapping[Part, Slice]) -> float:
    return sum(part.seconds for part in parts.values())


def measured(values: Sequence[float]) -> Measured:
    """Return median and distance of the quartiles."""
    if len(values) == 1:
        return Measured(values[0], 0.0)
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Measured(middle, high - low)


def _without(part: Slice, mark_s: float) -> float:
    return max(0.0, part.seconds - part.marks * mark_s)


def _owners(marks: Sequence[Mark]) -> list[Part]:
    """Return the part of each interval between two marks."""
    owners = []
    stage: Stage = "other"
    call = 0
    for mark in marks[:-1]:
        if mark.kind == "gate":
            stage, call = "forward", mark.call
        elif mark.kind != "done" and mark.kind != "end":
            stage = mark.kind
        owners.append(Part(stage, call if stage in ("forward", "loss") else 0))
    _look_back(owners, marks)
    return owners


def _look_back(owners: list[Part], marks: Sequence[Mark]) -> None:
    """Resolve the parts that depend on later marks."""
    done = [mark.call for mark in marks if mark.kind == "done"]
    uppermost = min(done, default=0)  # which also gets the work of backward after the last gradient
    more_forward = False
    for i in reversed(range(len(owners))):
        stage, call = owners[i]
        if stage == "backward":
            if marks[i + 1].kind == "done":
                uppermost = max(uppermost, marks[i + 1].call)
            owners[i] = Part(stage, uppermost)
        elif stage == "loss":
            # Between two calls of models there is no loss yet.
            owners[i] = Part("forward", call) if more_forward else Part("loss")
        more_forward = more_forward or stage == "forward"
