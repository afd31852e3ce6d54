"""When a plan is made, and of what: of the model as it was measured on the slowest rank.

Everything here is done by all ranks at the same moment, between two rounds.
"""

import itertools
import time
from collections.abc import Callable, Mapping

from bytelane.cluster import Cluster, Link
from bytelane.core import Element, Plan, Planner, Review, Wish, bucket_plan
from bytelane.errors import PlanMismatch
from bytelane.job import Job, Tensor
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.control import Control
from bytelane.runtime.torch.stopwatch import Stopwatch, durations, measured_job
from bytelane.runtime.torch.trained import Trained

# The first iteration allocates memory and is not typical; the next ones are measured.
MEASURED_ITERATIONS = 2
FIRST_ITERATIONS = 1 + MEASURED_ITERATIONS
# A new plan is judged soon, by three iterations that have seen nothing else; then now and then.
FIRST_REVIEW = 5
REVIEWED_ITERATIONS = 10
JUDGED_ITERATIONS = 3
# Measuring and planning again costs seconds: as much of the time since the first plan, at most.
MOST_PLANNING = 0.5
# What is in flight is in memory twice, so buckets are not as large as DDP's.
FIRST_BUCKET_BYTES = 2**22


class Planning:
    """The plans of one model, one after the other."""

    def __init__(
        self,
        name: str,
        planner: Planner,
        watch: Stopwatch,
        control: Control,
        *,
        probe: Callable[[], Link] | None = None,
        review: Review | None = None,
    ) -> None:
        self.job: Job | None = None
        """The model as measured; None before that."""
        self.wish = Wish.NOTHING
        self._name = name
        self._planner = planner
        self._watch = watch
        self._control = control
        self._probe = probe
        self._review = review
        self._version = 0
        self._first_step = 0
        self._planned_step = 0
        self._cluster: Cluster | None = None
        self._is_measured = False
        self._planned_s = 0.0
        self._planned_since: float | None = None

    def first_plan(self, trained: Trained, step: int) -> Plan:
        """Plan without knowing anything; what was known before is forgotten."""
        self.job, self._is_measured = None, False
        self._first_step = step
        self._version += 1
        buckets = bucket_plan(trained.tensor_bytes, FIRST_BUCKET_BYTES, self._version)
        return _fit(buckets.cut(FIRST_BUCKET_BYTES), trained)

    def is_due(self, step: int, granted: Wish) -> bool:
        """Tell whether a plan is to be made now; the same on all ranks, which count alike."""
        if not self._is_measured:
            return step - self._first_step >= FIRST_ITERATIONS
        return granted is not Wish.NOTHING

    def propose(self, planner: Planner) -> None:
        """Plan with this from the next agreed step on; what rank 0 proposes is done, and stays."""
        if self._control.rank == 0:
            self._planner, self._review, self.wish = planner, None, Wish.PLAN

    def review(self, step: int) -> None:
        """Look from time to time, on rank 0, whether iterations are still as they were."""
        if self._review is None or self._control.rank != 0 or not self._is_measured:
            return
        under_this_plan = step - self._planned_step
        if under_this_plan == FIRST_REVIEW or under_this_plan % REVIEWED_ITERATIONS == 0:
            iteration_s = self._watch.iteration_s(JUDGED_ITERATIONS)
            wish = Wish.NOTHING if iteration_s is None else self._review(iteration_s)
            if wish is Wish.MEASURE_AND_PLAN and not self._may_measure_again():
                wish = Wish.NOTHING
            if wish is not Wish.NOTHING:  # or what a user has proposed would be forgotten
                self.wish = wish

    def next_plan(
        self, trained: Trained, unused: set[int], step: int, granted: Wish
    ) -> Plan | None:
        """Let rank 0 plan, and return its plan on every rank; None if nothing could be measured."""
        began = time.perf_counter()
        self._planned_since = self._planned_since or began
        self._planned_step = step
        if not self._is_measured or granted in (Wish.MEASURE_AND_PLAN, Wish.CORRECT):
            self.job, self._is_measured = self._measure(trained, unused, step), True
        self.wish = Wish.NOTHING
        if self.job is None:
            return None
        if self._probe is not None and (granted is not Wish.CORRECT or self._cluster is None):
            self._cluster = Cluster(self._control.size, self._probe())
        plan = None
        self._version += 1
        try:
            if self._control.rank == 0:
                plan = _fit(self._planner(self.job, self._version, self._cluster), trained)
        finally:  # also if that failed: the other ranks must not wait for ever
            agreed = agreement.share_plan(plan, self._control)
        self._planned_s += time.perf_counter() - began
        return agreed

    def _may_measure_again(self) -> bool:
        assert self._planned_since is not None
        return self._planned_s <= MOST_PLANNING * (time.perf_counter() - self._planned_since)

    def _measure(self, trained: Trained, unused: set[int], step: int) -> Job | None:
        iterations = range(step - MEASURED_ITERATIONS, step)
        mine = self._watch.layer_order(iterations[-1])
        layers = agreement.names_from_first(mine, self._control)
        if not layers or not len(trained):
            return None
        # A disturbance makes everything take longer: the quietest iteration is the most typical.
        steps = min((durations(self._watch, layers, [k]) for k in iterations), key=sum)
        all_of_us = agreement.slowest(list(itertools.accumulate(steps)), self._control)
        slowest = [b - a for a, b in itertools.pairwise([0.0, *all_of_us])]
        place = {name: i for i, name in enumerate(layers)}
        tensors = []
        for number, (name, size) in enumerate(
            zip(trained.names, trained.tensor_bytes, strict=True)
        ):
            # What backward does not reach takes part when it is over: after the first layer.
            owners = () if number in unused else trained.owners[number]
            users = {_place_of(owner, place) for owner in owners} or {0}
            tensors.append(Tensor(name, size, tuple(sorted(users))))
        return measured_job(self._name, layers, tensors, slowest)


def _place_of(module: str, place: Mapping[str, int]) -> int:
    """Return where in forward a module is, or the one around it that uses its parameters."""
    while module and module not in place:
        module = module.rpartition(".")[0]
    return place.get(module, 0)


def _fit(plan: Plan, trained: Trained) -> Plan:
    if plan.tensor_bytes != trained.tensor_bytes:
        raise PlanMismatch(
            "the planner has made a plan for other tensors than those that are trained"
        )
    return plan.fit_to([Element(str(dtype), dtype.itemsize) for dtype in trained.dtypes])
