"""Measure the link for each kind of contender, by its own way of sending."""

from collections.abc import Sequence
from typing import NamedTuple

from bytelane.bench.contender import Contender, Ours, in_halves
from bytelane.bench.trainers import our_groups
from bytelane.cluster import Link
from bytelane.measure import measure_link
from bytelane.tune.probe import probe

# 1 s is enough for a plan, but the cost of small messages varies over seconds.
MEASURED_S = 4.0


class Links(NamedTuple):
    """The measured links; times are the slowest rank's, so all ranks agree."""

    plain: Link
    """By plain all-reduces, such as DDP's."""
    ours: Link
    """By our own engine, whose work is a part of the cost of an operation."""
    in_halves: Link
    """By our own engine, which reduce-scatters first and then gathers."""

    @classmethod
    def measured(cls, contenders: Sequence[Contender]) -> "Links":
        (lane,) = our_groups().lanes(1)
        plain, _ = measure_link(lane, budget_s=MEASURED_S)
        ours = halves = probe(lane, budget_s=MEASURED_S)
        if any(map(in_halves, contenders)):
            halves = probe(lane, in_halves=True, budget_s=MEASURED_S)
        return cls(plain, ours, halves)

    def of(self, contender: Contender) -> Link:
        """Return the link for this contender."""
        if not isinstance(contender, Ours):
            return self.plain
        return self.in_halves if in_halves(contender) else self.ours
