"""Search for the best plan (pieces, order, windows) by simulating candidates.

Every candidate is a whole plan: its order is fixed, as in training, and it is judged on the job and
the link as they were measured. An order that is the best only if everything takes exactly as long
as measured is not the best: it is also judged on a link 3 % slower and 3 % faster.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

import msgspec

from bytelane.cluster import Cluster
from bytelane.core import Knobs, Plan, Setting, bucket_plan
from bytelane.job import Job
from bytelane.sim import Simulation, simulate
from bytelane.sim.planner import PolicyPlanner
from bytelane.units import format_bytes

MEBIBYTE = 2**20
UNITS = tuple(count * MEBIBYTE // 4 for count in (1, 2, 3, 4, 6, 8, 16))
# The forward pass waits for the first unit, which is complete last: if it is smaller than the
# others by such a factor it arrives sooner, and they may be larger. The first of these factors is
# tried with all sizes, the others with the BEST_FEW best.
FIRST_PARTS = (2, 1, 4, 8)
BEST_FEW = 3
# One operation at a time leaves the link idle between two of them, while ranks notice the end and
# copy parts: 2 to 9 % in training, which no simulation of a link shows. With three, urgent
# operations wait longer for their turn.
IN_FLIGHT = 2
# Every operation costs all ranks work, which no simulation of a link shows either: of the plans
# within 0.5 % of the best, the one with the fewest operations is taken.
AS_GOOD = 1.005
# Plan as if communication took this many times as long as computing. The orders of the first two
# are right for most jobs at most rates; the others are tried with the best pieces only.
USUAL_RATIOS = (1.1, 1.25)
RATIOS = (*USUAL_RATIOS, 0.6, 0.8, 1.0, 1.05, 1.15)
# Rates of the link that are tried as well, relative to the measured one.
SURPRISES = (0.97, 1.03)
BUCKETS = tuple(count * MEBIBYTE for count in (1, 2, 4, 8))
# How many plans with larger units are tried when a plan is slower than predicted.
LARGER_RIVALS = 2
MOST_RIVALS = LARGER_RIVALS + 2
# Scheduling must be predicted to be 2 % faster than plain buckets, or these are taken.
WORTH = 1.02


class Candidate(msgspec.Struct, frozen=True):
    """A plan, its description, and the predicted time per iteration."""

    plan: Plan
    name: str
    iteration_s: float
    setting: Setting
    surprised_s: float = 0.0
    """The mean prediction over the measured link and the SURPRISES."""
    compute_s: float = 0.0
    communication_s: float = 0.0
    """Both lower bounds of the prediction: computing without communication, and how long the link
    is busy with these pieces without any waiting."""


class Choice(msgspec.Struct, frozen=True):
    """The candidate taken, and its alternatives with their predicted times."""

    taken: Candidate
    plain: Candidate
    """The best plain buckets."""
    scheduled: Candidate
    """The best order of all bytes by need."""

    # Candidates may stem from different measurements and have different pieces; the least of their
    # bounds holds for all.
    @property
    def compute_s(self) -> float:
        return min(one.compute_s for one in (self.taken, self.plain, self.scheduled))

    @property
    def communication_s(self) -> float:
        """How long the link is busy without any waiting, with the best pieces."""
        return min(one.communication_s for one in (self.taken, self.plain, self.scheduled))

    @property
    def bound_s(self) -> float:
        return max(self.compute_s, self.communication_s)

    @property
    def is_plain(self) -> bool:
        return self.taken is self.plain


def choose(job: Job, cluster: Cluster, version: int) -> Choice:
    """Find the plan with the shortest iteration; plain buckets if scheduling gains too little."""
    plain = _best(_plain(job, cluster, version))
    scheduled = _best_by_need(job, cluster, version)
    taken = scheduled if scheduled.iteration_s * WORTH <= plain.iteration_s else plain
    return Choice(taken, plain, scheduled)


def rivals(job: Job, cluster: Cluster, choice: Choice, running: Candidate) -> list[Candidate]:
    """Return candidates that may beat a plan whose iterations take longer than predicted.

    These are the choice as it would be now, plans with larger units and so fewer operations (whose
    costs a simulation of a link underestimates), and plain buckets.
    """
    unit = running.setting.knobs.partition_bytes or job.total_bytes
    larger = [size for size in UNITS if unit < size < job.total_bytes][:LARGER_RIVALS]
    version = choice.taken.plan.version
    others = [_best_in_units([size], job, cluster, version) for size in larger]
    found = {running.plan.operations: running}
    for one in (choice.taken, *others, choice.plain):
        found.setdefault(one.plan.operations, one)
    return [_named_apart(one, running) for one in list(found.values())[1:]]


def _named_apart(candidate: Candidate, other: Candidate) -> Candidate:
    if candidate.name != other.name:
        return candidate
    return msgspec.structs.replace(candidate, name=f"{candidate.name}, in another order")


def predict_s(job: Job, cluster: Cluster, plan: Plan) -> float:
    """Return how long an iteration takes under a plan."""
    return _simulate(job, cluster, plan).iteration_s


def _plain(job: Job, cluster: Cluster, version: int) -> Iterator[Candidate]:
    ready = sorted(range(len(job.tensors)), key=lambda t: (-job.tensors[t].complete_after, -t))
    sizes = [tensor.bytes for tensor in job.tensors]
    for size in BUCKETS:
        plan = bucket_plan(sizes, size, version, ready).cut(size)
        name = f"plain buckets of {format_bytes(size)}"
        setting = Setting(plan.policy, Knobs(fusion_bytes=size))
        yield _candidate(plan, name, _simulate(job, cluster, plan), setting)


def _candidate(
    plan: Plan, name: str, found: Simulation, setting: Setting, surprised_s: float = 0.0
) -> Candidate:
    times = found.iteration_s, setting, surprised_s, found.compute_s, found.communication_s
    return Candidate(plan, name, *times)


def _best_by_need(job: Job, cluster: Cluster, version: int) -> Candidate:
    useful = [unit for unit in UNITS if unit < job.total_bytes] or UNITS[:1]
    return _best_in_units(useful, job, cluster, version)


def _best_in_units(units: Sequence[int], job: Job, cluster: Cluster, version: int) -> Candidate:
    def candidate(knobs: Knobs, ratio: float, surprises: Sequence[Cluster] = ()) -> Candidate:
        setting = Setting("units", knobs, ratio)
        plan = PolicyPlanner(setting).plan(job, version=version)
        found = _simulate(job, cluster, plan)
        times = [found.iteration_s, *(predict_s(job, one, plan) for one in surprises)]
        return _candidate(plan, _name_units(knobs), found, setting, fmean(times))

    def in_units(unit: int, part: int) -> Candidate:
        knobs = Knobs(unit, IN_FLIGHT * unit, first_bytes=unit // part)
        return _best(candidate(knobs, ratio) for ratio in USUAL_RATIOS)

    found = {unit: in_units(unit, FIRST_PARTS[0]) for unit in units}
    few = sorted(units, key=lambda unit: found[unit].iteration_s)[:BEST_FEW]
    others = [in_units(unit, part) for unit in few for part in FIRST_PARTS[1:]]
    best = _fewest_as_good([*found.values(), *others])
    surprises = [_at_rate(factor, cluster) for factor in SURPRISES]
    return _best(candidate(best.setting.knobs, ratio, surprises) for ratio in RATIOS)


def _name_units(knobs: Knobs) -> str:
    full, first, credit = knobs.partition_bytes, knobs.first_bytes, knobs.credit_bytes
    assert full is not None
    assert credit is not None
    begin = "" if first in (None, full) else f"{format_bytes(first)} to "
    return f"units of {begin}{format_bytes(full)}, {credit // full} in flight"


def _at_rate(factor: float, cluster: Cluster) -> Cluster:
    link = cluster.link
    down = None if link.down_rate is None else factor * link.down_rate
    return cluster.with_link(msgspec.structs.replace(link, rate=factor * link.rate, down_rate=down))


def _best(candidates: Iterable[Candidate]) -> Candidate:
    return min(candidates, key=lambda candidate: candidate.surprised_s or candidate.iteration_s)


def _fewest_as_good(candidates: Sequence[Candidate]) -> Candidate:
    limit_s = AS_GOOD * min(candidate.iteration_s for candidate in candidates)
    good = [candidate for candidate in candidates if candidate.iteration_s <= limit_s]
    return min(good, key=lambda c: (len(c.plan.operations), c.iteration_s))


def _simulate(job: Job, cluster: Cluster, plan: Plan) -> Simulation:
    # Interpreted: loading the compiler would take as long as all of these together.
    return simulate(job, cluster, plan, "interpreted")
