"""``policy="auto"``: plan by searching, say so in a line, and notice when it has become wrong."""

from collections.abc import Callable

import msgspec

from bytelane.cluster import Cluster
from bytelane.core import Plan, Wish
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.tune.search import Candidate, Choice, choose, predict_s
from bytelane.units import format_seconds

# Iterations that take longer or shorter by this much, twice in a row, are no noise.
DEPARTURE = 0.10
TIMES = 2
# How often a prediction is corrected that was too short by this much. First the plan is made again,
# which costs little; then plain buckets are tried, which costs as much as they are slower.
TOO_SHORT = (0.05, 0.10)
MOST_CORRECTIONS = len(TOO_SHORT)


class AutoPlanner:
    """Plans on rank 0, for as long as a model is trained."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.choice: Choice | None = None
        self._say = say
        self._expected_s: float | None = None
        self._departures = 0
        self._surcharge_s = 0.0
        self._corrections = 0
        self._unexplained_s: float | None = None
        """How long iterations took that were predicted to be much shorter."""
        self._rival_s: float | None = None
        """How long iterations took under the plan that plain buckets are tried against."""
        self._next: Candidate | None = None
        """What is taken next, because of how it was or may be for real."""

    def __call__(self, job: Job, version: int, cluster: Cluster | None = None) -> Plan:
        """Search; the cluster must have been measured."""
        if cluster is None:
            raise InputError("policy auto needs a measured network to plan for")
        if self.choice is not None and self._next is not None:
            self.choice = msgspec.structs.replace(self.choice, taken=self._next)
            self._next = None
        else:
            self._explain(job, cluster)
            self.choice = choose(job, self._surcharged(cluster), version)
            self._say(describe(self.choice))
        self._expected_s = None
        self._departures = 0
        return msgspec.structs.replace(self.choice.taken.plan, version=version)

    def review(self, iteration_s: float) -> Wish:
        """Tell whether iterations have become so different that planning again is worth it.

        What counts is how iterations are compared with the first ones under the plan. Those are
        compared with the prediction: if they take much longer, either computing is slower beside
        so much communication (cores are shared, too), or an operation costs more than it did alone.
        If a prediction that knows this is no better, only trying can tell.
        """
        if self._expected_s is None:
            self._expected_s = iteration_s
            return Wish.CORRECT if self._must_correct(iteration_s) else Wish.NOTHING
        if abs(iteration_s / self._expected_s - 1) <= DEPARTURE:
            self._departures = 0
            return Wish.NOTHING
        self._departures += 1
        if self._departures < TIMES:
            return Wish.NOTHING
        self._corrections = 0
        return Wish.MEASURE_AND_PLAN

    def _must_correct(self, iteration_s: float) -> bool:
        """Judge the first iterations under a plan."""
        assert self.choice is not None
        taken = self.choice.taken
        if self._rival_s is not None:
            return self._has_lost(iteration_s)
        if self._corrections == MOST_CORRECTIONS:
            return False
        if iteration_s <= (1 + TOO_SHORT[self._corrections]) * taken.iteration_s:
            return False
        self._corrections += 1
        if self._corrections < MOST_CORRECTIONS:
            self._unexplained_s = iteration_s
            return True
        if self.choice.is_plain:
            return False
        self._rival_s, self._next = iteration_s, self.choice.plain
        self._say(
            f"an iteration takes {format_seconds(iteration_s)} instead of "
            f"{format_seconds(taken.iteration_s)}: {self.choice.plain.name} are tried"
        )
        return True

    def _has_lost(self, iteration_s: float) -> bool:
        """Tell whether plain buckets, which were tried, are slower than what was there before."""
        assert self.choice is not None
        assert self._rival_s is not None
        rival_s, self._rival_s = self._rival_s, None
        has_lost = iteration_s > rival_s
        winner = self.choice.scheduled if has_lost else self.choice.plain
        self._say(
            f"{format_seconds(iteration_s)} an iteration with {self.choice.plain.name}, "
            f"{format_seconds(rival_s)} with {self.choice.scheduled.name}: {winner.name} it is"
        )
        if has_lost:
            self._next = winner
        return has_lost

    def _explain(self, job: Job, cluster: Cluster) -> None:
        """Put down to the operations what the job, as measured beside them, does not explain."""
        if self._unexplained_s is not None:
            assert self.choice is not None
            plan = self.choice.taken.plan
            explained_s = predict_s(job, self._surcharged(cluster), plan)
            missing_s = max(0.0, self._unexplained_s - explained_s)
            self._surcharge_s += missing_s / len(plan.operations)
            self._unexplained_s = None

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
