"""``policy="auto"``: plan by search in the simulator, and plan again when iterations change."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bytelane.cluster import Cluster
from bytelane.core import Observation, Plan, Planner, Wish
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.tune.page import lines
from bytelane.tune.search import MOST_RIVALS, Candidate, Choice, choose, rivals
from bytelane.units import format_seconds

# Iterations that take longer or shorter by this share, TIMES times in a row, are not noise.
DEPARTURE = 0.10
TIMES = 2
# Iterations that take longer than predicted by this share have a reason that no simulation knows:
# computing is slower beside so much communication (cores are shared, too), or an operation costs
# more than it did alone. Then only trials can tell which plan is best.
TOO_SHORT = 0.05
MOST_TRIALS = 1 + MOST_RIVALS


class _Tried(NamedTuple):
    """A candidate, and the measured time per iteration under its plan."""

    iteration_s: float
    candidate: Candidate

    def __str__(self) -> str:
        return f"{format_seconds(self.iteration_s)} with {self.candidate.name}"


class AutoPlanner(Planner):
    """Plans by search in the simulator, and by trials where its prediction was too short."""

    name = "auto"
    needs_network = True

    def __init__(self, say: Callable[[str], None]) -> None:
        self.choice: Choice | None = None
        self._say = say
        self._version = 0
        self._expected_s: float | None = None
        self._departures = 0
        self._may_try = True
        self._trials: list[_Tried] = []
        """Measured times of the plans that are being compared."""
        self._next: list[Candidate] = []
        """Candidates to take next, without searching."""

    def plan(self, job: Job, cluster: Cluster | None = None, version: int = 1) -> Plan:
        """Search; the cluster must have been measured."""
        if cluster is None:
            raise InputError("policy auto needs a measured network to plan for")
        if self.choice is not None and version != self._version + 1:
            self._forget_trials()  # another planner had control: the trials are out of date
        self._version = version
        if self.choice is not None and not _is_for(job, self.choice.taken.plan):
            self._forget_trials()  # a tensor was frozen, unfrozen or added meanwhile
        if self._trials and not self._next:
            self._find_rivals(job, version, cluster)
        if self.choice is not None and self._next:
            self.choice = msgspec.structs.replace(self.choice, taken=self._next.pop(0))
        else:
            self.choice = choose(job, cluster, version)
            self._say(describe(self.choice))
        self._expected_s = None
        self._departures = 0
        return msgspec.structs.replace(self.choice.taken.plan, version=version)

    def observe(self, seen: Observation) -> Wish:
        """Ask for another plan if iterations have become much longer or shorter.

        Iterations are compared with the first ones under the plan. Those are compared with the
        prediction, and if it was too short, with trials of other plans.
        """
        if self.choice is None or (iteration_s := seen.iteration_s) is None:
            return Wish.NOTHING
        if self._expected_s is None:
            self._expected_s = iteration_s
            return self._judge(iteration_s, self.choice.taken)
        if abs(iteration_s / self._expected_s - 1) <= DEPARTURE:
            self._departures = 0
            return Wish.NOTHING
        self._departures += 1
        if self._departures < TIMES:
            return Wish.NOTHING
        self._forget_trials()
        return Wish.MEASURE_AND_PLAN

    def summarise(self, seen: Observation, replaced_by: str | None = None) -> str:
        if self.choice is None or seen.iteration_s is None:
            return ""
        told = lines(self.choice, seen.iteration_s, seen.link_busy_s, replaced_by)
        return "\n".join(["how it went", *told])

    def _judge(self, iteration_s: float, taken: Candidate) -> Wish:
        """Compare the first iterations under a plan with what was predicted for it."""
        if not self._trials:
            if not self._may_try or iteration_s <= (1 + TOO_SHORT) * taken.iteration_s:
                return Wish.NOTHING
            self._may_try = False
        self._trials.append(_Tried(iteration_s, taken))
        if len(self._trials) == 1 or self._next:
            return Wish.CORRECT
        best = min(self._trials, key=lambda trial: trial.iteration_s)
        self._say(f"{', '.join(map(str, self._trials))}: taking {best.candidate.name}")
        self._trials = []
        if best.candidate is taken:
            return Wish.NOTHING
        self._next = [best.candidate]
        return Wish.CORRECT

    def _forget_trials(self) -> None:
        self._trials, self._next, self._may_try = [], [], True

    def _find_rivals(self, job: Job, version: int, cluster: Cluster) -> None:
        """Queue the plans that are predicted to be faster, now that computing is measured again."""
        (running,) = self._trials
        self.choice = choose(job, cluster, version)
        found = rivals(job, cluster, self.choice, running.candidate)
        self._next = [rival for rival in found if rival.iteration_s < running.iteration_s]
        if not self._next:
            self._trials, self._next = [], [running.candidate]
            return
        names = ", ".join(rival.name for rival in self._next)
        took, predicted = running.iteration_s, running.candidate.iteration_s
        self._say(
            f"an iteration takes {format_seconds(took)} instead of {format_seconds(predicted)}, "
            f"so these are tried for a few iterations each: {names}"
        )


def _is_for(job: Job, plan: Plan) -> bool:
    return plan.tensor_bytes == tuple(tensor.bytes for tensor in job.tensors)


def describe(choice: Choice) -> str:
    """Say in one line which plan is taken and why."""
    taken, plain = (
        format_seconds(choice.taken.iteration_s),
        format_seconds(choice.plain.iteration_s),
    )
    bound = format_seconds(choice.bound_s)
    if not choice.is_plain:
        return (
            f"{plain} -> {taken} per iteration (predicted; bound {bound}): {choice.taken.name}, "
            f"instead of {choice.plain.name}"
        )
    computing, sending = map(format_seconds, (choice.compute_s, choice.communication_s))
    return (
        f"nothing to win here ({_side(choice)}), computing takes {computing} and communication "
        f"{sending}: {choice.taken.name}, {taken} per iteration (predicted; bound {bound})"
    )


def _side(choice: Choice) -> str:
    """Say whether computing or the network is longer, and how many times."""
    shorter, longer = sorted((choice.compute_s, choice.communication_s))
    times = longer / shorter if shorter else float("inf")
    if format_seconds(shorter) == format_seconds(longer):
        return "balanced"
    side = "compute" if choice.compute_s == longer else "network"
    return f"{side}-bound {times:.3g}:1" if times < 10 else f"{side}-bound {times:.0f}:1"
