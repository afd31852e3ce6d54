"""Search what to send, in which pieces and in which order, by asking the simulator.

Every candidate is a whole plan: its order is fixed, as it would be for real, and it is judged on
the job and the link as they were measured. An order that is the best only if everything takes
exactly as long as measured is not the best: a link a little slower or faster counts as well.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

import msgspec

from bytelane.cluster import Cluster
from bytelane.core import Knobs, Plan, bucket_plan
from bytelane.job import Job
from bytelane.sim import Simulation, make_planner, simulate
from bytelane.units import format_bytes

MEBIBYTE = 2**20
UNITS = tuple(2**k for k in range(18, 23))
# One at a time leaves the link idle between two operations, while their ends are told and their
# parts copied: 2 to 9 % for real, which no simulation of a link shows.
IN_FLIGHT = (2, 3)
# As if communication took this much of the computing time. The order of the first is right for most
# jobs at most rates; the others are tried with the best pieces only.
RATIOS = (1.1, 0.6, 0.8, 1.0, 1.05, 1.15, 1.25)
# How fast the link may be, beside what was measured.
SURPRISES = (0.97, 1.03)
BUCKETS = tuple(count * MEBIBYTE for count in (1, 2, 4, 8))
# Scheduling must promise this much over plain buckets, or they are taken.
WORTH = 1.02


class Candidate(msgspec.Struct, frozen=True):
    """A plan, what it is in words, and how long an iteration would take under it."""

    plan: Plan
    name: str
    iteration_s: float
    knobs: Knobs = Knobs()
    surprised_s: float = 0.0
    """How long one would take, on average, with surprises."""


class Choice(msgspec.Struct, frozen=True):
    """What was chosen, and what the alternatives are worth."""

    taken: Candidate
    plain: Candidate
    """The best plain buckets."""
    scheduled: Candidate
    """The best order of all bytes by need."""
    compute_s: float
    communication_s: float
    """How long the link would be busy if everything were sent at once, in the pieces taken."""

    @property
    def bound_s(self) -> float:
        return max(self.compute_s, self.communication_s)

    @property
    def is_plain(self) -> bool:
        return self.taken is self.plain


def choose(job: Job, cluster: Cluster, version: int) -> Choice:
    """Find the plan with which an iteration is shortest; plain buckets if that gains little."""
    plain = _best(_plain(job, cluster, version))
    scheduled = _best_by_need(job, cluster, version)
    taken = scheduled if scheduled.iteration_s * WORTH <= plain.iteration_s else plain
    found = _simulate(job, cluster, taken.plan)
    return Choice(taken, plain, scheduled, found.compute_s, found.communication_s)


def predict_s(job: Job, cluster: Cluster, plan: Plan) -> float:
    """Return how long an iteration takes under a plan."""
    return _simulate(job, cluster, plan).iteration_s


def _plain(job: Job, cluster: Cluster, version: int) -> Iterator[Candidate]:
    ready = sorted(range(len(job.tensors)), key=lambda t: (-job.tensors[t].complete_after, -t))
    sizes = [tensor.bytes for tensor in job.tensors]
    for size in BUCKETS:
        plan = bucket_plan(sizes, size, version, ready).cut(size)
        name = f"plain buckets of {format_bytes(size)}"
        yield Candidate(plan, name, predict_s(job, cluster, plan))


def _best_by_need(job: Job, cluster: Cluster, version: int) -> Candidate:
    def candidate(knobs: Knobs, ratio: float, surprises: Sequence[Cluster] = ()) -> Candidate:
        assert knobs.partition_bytes is not None
        assert knobs.credit_bytes is not None
        plan = make_planner("units", knobs, ratio=ratio)(job, version)
        count = knobs.credit_bytes // knobs.partition_bytes
        name = f"units of {format_bytes(knobs.partition_bytes)}, {count} in flight"
        times = [predict_s(job, one, plan) for one in (cluster, *surprises)]
        return Candidate(plan, name, times[0], knobs, fmean(times))

    useful = [unit for unit in UNITS if unit < job.total_bytes] or UNITS[:1]
    pieces = (Knobs(unit, unit * count) for unit in useful for count in IN_FLIGHT)
    best = _best(candidate(knobs, RATIOS[0]) for knobs in pieces)
    surprises = [_at_rate(factor * cluster.link.rate, cluster) for factor in SURPRISES]
    return _best(candidate(best.knobs, ratio, surprises) for ratio in RATIOS)


def _at_rate(rate: float, cluster: Cluster) -> Cluster:
    link = msgspec.structs.replace(cluster.link, rate=rate)
    return msgspec.structs.replace(cluster, link=link)


def _best(candidates: Iterable[Candidate]) -> Candidate:
    return min(candidates, key=lambda candidate: candidate.surprised_s or candidate.iteration_s)


def _simulate(job: Job, cluster: Cluster, plan: Plan) -> Simulation:
    # Interpreted: loading the compiler would take as long as all of these together.
    return simulate(job, cluster, plan, "interpreted")
