"""Planning of one model: measure it on the slowest rank, let rank 0 plan, install on all ranks.

All ranks do this at the same moment, between two rounds.
"""

import itertools
import time
from collections.abc import Callable, Mapping

from bytelane.cluster import Cluster, Link
from bytelane.core import Observation, Plan, Planner, Wish
from bytelane.errors import TrainingError
from bytelane.job import Job, Tensor
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.carrier import Carrier
from bytelane.runtime.torch.parameters import TrainedParameters
from bytelane.runtime.torch.profiler import Profiler, durations, measured_job

# The first iteration allocates memory and is not typical; the next ones are measured.
MEASURED_ITERATIONS = 2
FIRST_ITERATIONS = 1 + MEASURED_ITERATIONS
# A new plan is judged after FIRST_REVIEW iterations, by the last JUDGED_ITERATIONS under it alone;
# then every REVIEWED_ITERATIONS.
FIRST_REVIEW = 5
REVIEWED_ITERATIONS = 10
JUDGED_ITERATIONS = 3
# Measuring and planning again takes seconds: at most 50 % of the time since the first plan.
MOST_PLANNING = 0.5


class Planning:
    """The plans of one model, one after the other."""

    def __init__(
        self,
        name: str,
        planner: Planner,
        watch: Profiler,
        carrier: Carrier,
        *,
        probe: Callable[[], Link] | None = None,
    ) -> None:
        self.job: Job | None = None
        """The model as measured; None before that."""
        self.wish = Wish.NOTHING
        self._name = name
        self._given = planner  # the same on all ranks; only rank 0 knows later ones
        self._planners = [planner]
        """All planners that had control; the last one has it now."""
        self._proposed: Planner | None = None
        self._watch = watch
        self._carrier = carrier
        self._control = carrier.control
        self._probe = probe
        self._version = 0
        self._first_step = 0
        self._planned_step = 0
        self._cluster: Cluster | None = None
        self._is_measured = False
        self._planned_s = 0.0
        self._planned_since: float | None = None

    def first_plan(self, trained: TrainedParameters, step: int) -> Plan:
        """Plan plain buckets, before any measurement; earlier measurements are dropped."""
        self.job, self._is_measured = None, False
        self._first_step = step
        self._version += 1
        return self._carrier.first_plan(trained, self._version)

    def is_due(self, step: int, granted: Wish) -> bool:
        """Tell whether a plan is to be made now; the answer is the same on all ranks."""
        if not self._is_measured:
            return step - self._first_step >= FIRST_ITERATIONS
        return granted is not Wish.NOTHING

    def propose(self, planner: Planner) -> None:
        """Give control to a planner at the next agreed step; only rank 0's proposal counts."""
        if self._control.rank == 0:
            self._proposed = planner
            self.wish = Wish.MEASURE_AND_PLAN if planner.needs_network else Wish.PLAN

    def find(self, name: str) -> Planner | None:
        """Return the planner of that name that was given control last, if there was one."""
        known = [*self._planners, *filter(None, [self._proposed])]
        return next((one for one in reversed(known) if one.name == name), None)

    def review(self, step: int) -> None:
        """Let rank 0's planner judge, from time to time, how long iterations take."""
        if self._proposed is not None or self._control.rank != 0 or not self._is_measured:
            return
        under_this_plan = step - self._planned_step
        if under_this_plan == FIRST_REVIEW or under_this_plan % REVIEWED_ITERATIONS == 0:
            seen = self._observed(step, self._watch.iteration_s(JUDGED_ITERATIONS))
            wish = Wish.NOTHING if seen.iteration_s is None else self._planners[-1].observe(seen)
            if wish is Wish.MEASURE_AND_PLAN and not self._may_measure_again():
                wish = Wish.NOTHING
            self.wish = wish

    def summarise(self, step: int) -> str:
        """Return the summary of the last planner that has one."""
        seen = self._observed(step, self._watch.iteration_s())
        for planner in reversed(self._planners):
            current = self._planners[-1]
            text = planner.summarise(seen, None if planner is current else current.name)
            if text:
                return text
        return ""

    def _observed(self, step: int, iteration_s: float | None) -> Observation:
        watch = self._watch
        return Observation(
            step, self._version, iteration_s, watch.link_busy_s(), watch.last_transfers()
        )

    def next_plan(
        self, trained: TrainedParameters, unused: set[int], step: int, granted: Wish
    ) -> Plan | None:
        """Let rank 0 plan, and return its plan on every rank; None if nothing could be measured."""
        began = time.perf_counter()
        self._planned_since = self._planned_since or began
        self._planned_step = step
        # All ranks must measure the same, so this must not depend on rank 0's present planner.
        is_first = not self._is_measured
        if is_first or granted.measures_model:
            self.job, self._is_measured = self._measure(trained, unused, step), True
        self.wish = Wish.NOTHING
        if self.job is None:
            return None
        needs_network = granted.measures_network or (is_first and self._given.needs_network)
        if self._probe is not None and needs_network:
            self._cluster = Cluster.star(self._control.size, self._probe())
        self._hand_over(can_plan_for_network=needs_network)
        self._version += 1
        agreed = agreement.share_plan(self._make_plan(trained), self._control)
        self._planned_s += time.perf_counter() - began
        return agreed

    def _make_plan(self, trained: TrainedParameters) -> Plan | None:
        """Return rank 0's plan on rank 0; if it cannot be made, the other ranks raise, too."""
        if self._control.rank != 0:
            return None
        assert self.job is not None
        try:
            made = self._planners[-1].plan(self.job, self._cluster, self._version)
            return self._carrier.fit(made, trained)
        except BaseException as reason:
            try:
                agreement.share_plan(None, self._control)
            except TrainingError as refusal:
                if isinstance(reason, Exception):  # Ctrl-C and sys.exit stay what they are
                    raise refusal from reason
            raise

    def _hand_over(self, *, can_plan_for_network: bool) -> None:
        """Give control to the proposed planner, or ask again for the network that it needs."""
        proposed = self._proposed
        if proposed is None:
            return
        if proposed.needs_network and not can_plan_for_network:
            self.wish = Wish.MEASURE_AND_PLAN
            return
        self._planners = [*(one for one in self._planners if one is not proposed), proposed]
        self._proposed = None

    def _may_measure_again(self) -> bool:
        assert self._planned_since is not None
        return self._planned_s <= MOST_PLANNING * (time.perf_counter() - self._planned_since)

    def _measure(self, trained: TrainedParameters, unused: set[int], step: int) -> Job | None:
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
            # A tensor that backward does not reach takes part when it is over: after layer 0.
            owners = () if number in unused else trained.owners[number]
            users = {_place_of(owner, place) for owner in owners} or {0}
            tensors.append(Tensor(name, size, tuple(sorted(users))))
        return measured_job(self._name, layers, tensors, slowest)


def _place_of(module: str, place: Mapping[str, int]) -> int:
    """Return the place in forward of a module, or of the one around it that uses its parameters."""
    while module and module not in place:
        module = module.rpartition(".")[0]
    return place.get(module, 0)
