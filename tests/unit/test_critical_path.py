"""The critical path covers the iteration without a gap, and every link of it is real."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, make_policy, policies_for
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor
from bytelane.sim import Simulation, simulate
from bytelane.sim.critical_path import critical_path, explain
from strategies import jobs

eighths = st.integers(0, 8).map(lambda n: n / 8)
ways = [(s, p) for s in ("allreduce", "ps") for p in policies_for(s) if p != "optimal"]


def simulated(
    job: Job, way: tuple[str, str], theta: float, lam: float, slow: float, floor: float = 0.0
) -> Simulation:
    sync, name = way
    factors = (1.0, slow) if slow > 1 else ()
    link = Link(8.0, theta, lam, floor)
    cluster = Cluster.star(2, link, 2 if sync == "ps" else 0, compute_factors=factors)
    policy = make_policy(name, job, cluster, Knobs(16, 32, 40))
    return simulate(job, cluster, policy, "interpreted")


@given(jobs(), st.sampled_from(ways), eighths, eighths, st.sampled_from([1.0, 1.5]), eighths)
def test_the_path_is_the_iteration_without_gaps(
    job: Job, way: tuple[str, str], theta: float, lam: float, slow: float, floor: float
) -> None:
    found = simulated(job, way, theta, lam, slow, floor)
    path = critical_path(found)
    assert found.log is not None
    seconds = float(found.log.iteration_start[0, -2] - found.log.iteration_start[0, -3])
    assert path[0].start_s == 0
    assert path[-1].end_s == seconds
    assert all(before.end_s == after.start_s for before, after in pairwise(path))


@given(jobs(), st.sampled_from(ways), eighths, eighths, st.integers(1, 5))
def test_an_explanation_is_short_and_leaves_nothing_out(
    job: Job, way: tuple[str, str], theta: float, lam: float, lines: int
) -> None:
    path = critical_path(simulated(job, way, theta, lam, 1.0))
    short = explain(path, lines)
    assert len(short) <= lines
    assert sum(cause.seconds for cause in short) == sum(cause.seconds for cause in path)


def test_a_job_that_waits_for_one_tensor_says_so() -> None:
    layers = (Layer("first", 1.0, 1.0), Layer("last", 1.0, 1.0))
    job = Job("job", layers, (Tensor("small", 8, (0,)), Tensor("large", 80, (1,))))
    path = critical_path(simulated(job, ("allreduce", "fifo"), 0.0, 0.0, 1.0))
    assert [(cause.what, cause.name, cause.seconds) for cause in path] == [
        ("forward", "first", 1.0),
        ("forward", "last", 1.0),
        ("backward", "last", 1.0),
        ("sending", "large", 10.0),
        ("sending", "small", 1.0),
    ]


def test_latency_is_named() -> None:
    job = Job("job", (Layer("only", 1.0, 1.0),), (Tensor("t", 8, (0,)),))
    path = critical_path(simulated(job, ("allreduce", "fifo"), 0.0, 0.5, 1.0))
    assert [(c.what, c.seconds) for c in path[-2:]] == [("sending", 1.0), ("latency", 0.5)]


def test_the_optimum_has_no_path() -> None:
    job = Job("job", (Layer("only", 1.0, 1.0),), (Tensor("t", 8, (0,)),))
    with pytest.raises(InputError, match="no critical path"):
        critical_path(simulated(job, ("allreduce", "optimal"), 0.0, 0.0, 1.0))


def test_small_messages_wait_for_the_one_before_to_be_handled() -> None:
    job = Job("one layer", (Layer("l", 1.0, 1.0),), tuple(Tensor(t, 8, (0,)) for t in "ab"))
    found = simulated(job, ("allreduce", "fifo"), theta=0.0, lam=0.5, slow=1.0, floor=3.0)
    kinds = [(cause.what, cause.name, cause.seconds) for cause in critical_path(found)]
    assert kinds[-3:] == [("handling", "a", 3.0), ("handling", "b", 3.0), ("latency", "b", 0.5)]
