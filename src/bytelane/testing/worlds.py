"""Worlds in which a policy is tested: a job, a cluster, and knobs; odd ones, then random ones.

Times are multiples of 1/8 s, rates and worker counts powers of two. So sums are exact, and
simultaneous events stay simultaneous. Uneven worlds are for comparing bits.
"""

from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link, Sync
from bytelane.core import Knob, Knobs, choose_knobs, policy_entry
from bytelane.job import Job, Layer, Tensor


class World(NamedTuple):
    """A job, a cluster and knobs to test a policy with."""

    job: Job
    cluster: Cluster
    knobs: Knobs | None = None
    """None: the policy's defaults."""
    seed: int = 0
    """Decides in which order gradients become ready and messages finish, where that is open."""

    def __str__(self) -> str:
        job, cluster = self.job, self.cluster
        knobs = "its own knobs" if self.knobs is None else str(self.knobs)
        return (
            f"job {job.name!r} ({len(job.layers)} layers, {len(job.tensors)} tensors), "
            f"{cluster.sync} with {cluster.workers} workers, {knobs}"
        )


def some_values(knob: Knob) -> list[float]:
    """Return values over the whole range of a knob: some of them must have an effect."""
    powers = [4.0**power for power in range(32)]
    steps = [knob.least + (knob.most - knob.least) * step / 16 for step in range(17)]
    found = {*powers[:21], *(steps if knob.most < powers[-1] else ()), *knob.usual}
    whole = found if knob.kind == "number" else set(map(int, found))
    return sorted(value for value in whole if knob.least <= value <= knob.most)


def _near(knob: Knob, value: int) -> float:
    """Return the number nearest to a value within a knob's range."""
    return min(max(value, knob.least), knob.most)


def odd_worlds(policy: str, *ways: Sync) -> Iterator[World]:
    """Yield every odd job on some cluster, and every kind of cluster with some job."""
    declared = policy_entry(policy).knobs
    eight = {knob.key: _near(knob, 8) for knob in declared}
    turned = choose_knobs(policy, **eight) if declared else None
    for sync in ways:
        clusters = _odd_clusters(sync)
        jobs = _odd_jobs()
        pairs = zip(range(max(len(jobs), len(clusters))), cycle(jobs), cycle(clusters))
        for seed, job, cluster in pairs:
            yield World(job, cluster, None, seed)
            if turned is not None:
                yield World(job, cluster, turned, seed)


def deep_job(layers: int = 1200) -> Job:
    """Return a job deeper than Python's stack."""
    return _job("deep", [(8, (i,)) for i in range(layers)], layers)


def wide_job() -> Job:
    """Return a job with a tensor of every order of magnitude, so that any knob finds its size."""
    return _job("wide", [(2**i, (i // 2,)) for i in range(30)], 15)


def _job(name: str, shapes: list[tuple[int, tuple[int, ...]]], layers: int = 3) -> Job:
    tensors = tuple(Tensor(f"t{i}", size, used) for i, (size, used) in enumerate(shapes))
    return Job(name, tuple(Layer(f"l{i}", 0.5, 1.0, 0.125) for i in range(layers)), tensors, 0.25)


def _odd_jobs() -> list[Job]:
    at_once = tuple(Layer(f"l{i}", 0.0, 0.0) for i in range(2))
    branches = tuple(Layer(f"l{i}", 1.0, 1.0, after=(0,) if i else ()) for i in range(4))
    return [
        _job("no tensors", []),
        _job("one byte", [(1, (0,))], layers=1),
        _job("one tensor", [(24, (2,))]),
        _job("no parameters but in the middle", [(9, (1,)), (9, (1,))]),
        _job("many tensors a layer", [(size, (0,)) for size in (5, 24, 1, 5)], layers=1),
        _job("a tensor a layer", [(16, (0,)), (16, (1,)), (24, (2,))]),
        _job("from large to small", [(24, (0,)), (8, (1,)), (1, (2,))]),
        _job("tied weights", [(20, (0, 2)), (7, (1,)), (3, (2,))]),
        _job("needed and ready in neither order", [(4, (2,)), (8, (0, 1)), (2, (1,)), (6, (0,))]),
        Job("computing takes no time", at_once, (Tensor("a", 8, (0,)), Tensor("b", 8, (1,)))),
        Job("branches", branches, tuple(Tensor(f"t{i}", 8 - i, (i,)) for i in range(4))),
    ]


def _odd_clusters(sync: Sync) -> list[Cluster]:
    link = Link(8.0, 0.125, 0.25, 0.5)
    if sync == "allreduce":
        return [
            Cluster.star(2, link),
            Cluster.star(1, link),
            Cluster.star(8, Link(8.0)),
            Cluster.star(2, link, compute_factors=(1.0, 1.5)),
        ]
    return [
        Cluster.star(2, link, servers=2),
        Cluster.star(1, link, servers=1),
        Cluster.star(4, link, servers=2, colocated=False),
        Cluster.star(2, Link(8.0), servers=4, colocated=False),
        Cluster.star(2, link, servers=2, compute_factors=(1.0, 1.5)),
    ]


eighths = st.integers(0, 24).map(lambda n: n / 8)
overheads = st.integers(0, 8).map(lambda n: n / 8)
uneven = st.floats(0, 3, allow_subnormal=False)


@st.composite
def worlds(draw: st.DrawFn, policy: str, *ways: Sync, exact: bool = True) -> World:
    """Draw a world in which this policy has a meaning, with its default knobs or others."""
    seconds = eighths if exact else uneven
    declared = policy_entry(policy).knobs
    turned = {knob.key: _near(knob, draw(st.integers(1, 48))) for knob in declared}
    own = not turned or draw(st.booleans())
    return World(
        job=draw(_jobs(seconds)),
        cluster=draw(_clusters(draw(st.sampled_from(ways)))),
        knobs=None if own else choose_knobs(policy, **turned),
        seed=draw(st.integers(0, 99)),
    )


@st.composite
def _jobs(draw: st.DrawFn, seconds: st.SearchStrategy[float]) -> Job:
    """Draw any kind of job: tied tensors, several per layer or none, branches."""
    count = draw(st.integers(1, 6))
    layers = tuple(
        Layer(f"l{i}", draw(seconds), draw(seconds), draw(seconds), draw(_inputs(i)))
        for i in range(count)
    )
    places = st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True)
    shapes = draw(st.lists(st.tuples(st.integers(1, 24), places), max_size=7))
    tensors = tuple(
        Tensor(f"t{i}", size, tuple(sorted(used))) for i, (size, used) in enumerate(shapes)
    )
    return Job("random", layers, tensors, draw(seconds))


def _inputs(layer: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    if layer == 0:
        return st.none()
    return st.none() | st.sets(st.integers(0, layer - 1), max_size=2).map(
        lambda s: tuple(sorted(s))
    )


@st.composite
def _clusters(draw: st.DrawFn, sync: Sync) -> Cluster:
    rate = draw(st.sampled_from([4.0, 32.0]))
    overhead_s, latency_s, floor_s = (draw(overheads) for _ in range(3))
    link = Link(rate, overhead_s, latency_s, floor_s)
    workers = draw(st.sampled_from([1, 2, 4]))
    factors = draw(st.sampled_from([(), (1.0,) * (workers - 1) + (1.5,)]))
    if sync == "allreduce":
        return Cluster.star(workers, link, compute_factors=factors)
    separate = draw(st.booleans())
    servers = draw(st.sampled_from([1, 2, 4])) if separate else workers
    return Cluster.star(workers, link, servers, not separate, factors)
