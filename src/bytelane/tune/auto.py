"""``policy="auto"``: plan by searching, say so in a line, and notice when it has become wrong."""

from collections.abc import Callable

import msgspec

from bytelane.cluster import Cluster
from bytelane.core import Plan
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.tune.search import Choice, choose
from bytelane.units import format_seconds

# Iterations that take longer or shorter by this much, twice in a row, are no noise.
DEPARTURE = 0.10
TIMES = 2
# How often a prediction that was too short may be corrected before it is left at that.
MOST_CORRECTIONS = 2


class AutoPlanner:
    """Plans on rank 0, for as long as a model is trained."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.choice: Choice | None = None
        self._say = say
        self._expected_s: float | None = None
        self._departures = 0
        self._surcharge_s = 0.0
        self._corrections = 0

    def __call__(self, job: Job, version: int, cluster: Cluster | None = None) -> Plan:
        """Search; the cluster must have been measured."""
        if cluster is None:
            raise InputError("policy auto needs a measured network to plan for")
        self.choice = choose(job, self._surcharged(cluster), version)
        self._expected_s = None
        self._departures = 0
        self._say(describe(self.choice))
        return self.choice.taken.plan

    def has_departed(self, iteration_s: float) -> bool:
        """Tell whether iterations have become so different that planning again is worth it.

        What counts is how iterations are compared with the first ones under the plan. Those are
        compared with the prediction: if they take much longer, an operation costs more beside
        computing than it did alone (cores are shared, too), and fewer of them may be better.
        """
        if self._expected_s is None:
            self._expected_s = iteration_s
            return self._correct(iteration_s)
        if abs(iteration_s / self._expected_s - 1) <= DEPARTURE:
            self._departures = 0
            return False
        self._departures += 1
        return self._departures >= TIMES

    def _correct(self, iteration_s: float) -> bool:
        """Tell whether the prediction was too short, and put it down to the operations."""
        assert self.choice is not None
        taken = self.choice.taken
        if iteration_s <= (1 + DEPARTURE) * taken.iteration_s:
            return False
        if self._corrections == MOST_CORRECTIONS:
            return False
        self._corrections += 1
        self._surcharge_s += (iteration_s - taken.iteration_s) / len(taken.plan.operations)
        return True

    def _surcharged(self, cluster: Cluster) -> Cluster:
        overhead_s = cluster.link.overhead_s + self._surcharge_s
        link = msgspec.structs.replace(cluster.link, overhead_s=overhead_s)
        return msgspec.structs.replace(cluster, link=link)


def describe(choice: Choice) -> str:
    """Say in one line what is done and why."""
    taken, plain = (
        format_seconds(choice.taken.iteration_s),
        format_seconds(choice.plain.iteration_s),
    )
    bound = format_seconds(choice.bound_s)
    if not choice.is_plain:
        return (
            f"{plain} -> {taken} an iteration (predicted; bound {bound}): {choice.taken.name}, "
            f"instead of {choice.plain.name}"
        )
    ratio = choice.compute_s / choice.communication_s if choice.communication_s else float("inf")
    side = "compute" if ratio >= 1 else "network"
    share = ratio if ratio >= 1 else 1 / ratio
    return (
        f"nothing to win here ({side}-bound {share:.2g}:1): {choice.taken.name}, {taken} an "
        f"iteration (predicted; bound {bound})"
    )
