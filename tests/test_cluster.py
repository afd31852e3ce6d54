"""A cluster: what an all-reduce puts on each worker's link, and for how long."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.errors import InputError
from bytelane.units import format_rate

workers = st.integers(2, 4096)
rates = st.floats(1, 1e12)
times = st.floats(0, 10)
sizes = st.integers(1, 2**40)
links = st.builds(Link, rates, times, times)


@pytest.mark.parametrize(("count", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75), (64, 1.96875)])
def test_the_wire_factor_is_that_of_a_bandwidth_optimal_all_reduce(
    count: int, factor: float
) -> None:
    assert Cluster(count, Link(1e9)).allreduce_wire_factor == factor


@given(workers)
def test_the_wire_factor_rises_with_the_workers_and_stays_below_two(count: int) -> None:
    fewer, more = Cluster(count, Link(1.0)), Cluster(count + 1, Link(1.0))
    assert 1 <= fewer.allreduce_wire_factor < more.allreduce_wire_factor < 2


@given(workers, links, sizes)
def test_an_all_reduce_occupies_the_link_for_its_overhead_and_its_bytes(
    count: int, link: Link, size: int
) -> None:
    on_the_wire = Fraction(2 * (count - 1) * size, count)
    expected = Fraction(link.overhead_s) + on_the_wire / Fraction(link.rate)
    found = Cluster(count, link).allreduce_s(size)
    assert found == pytest.approx(float(expected), rel=1e-12, abs=0)


@given(workers, rates, times, times, times, sizes)
def test_the_latency_does_not_occupy_the_link(
    count: int, rate: float, overhead: float, one: float, other: float, size: int
) -> None:
    near, far = (Cluster(count, Link(rate, overhead, latency)) for latency in (one, other))
    assert near.allreduce_s(size) == far.allreduce_s(size)


@given(links, sizes)
def test_one_worker_has_nobody_to_talk_to(link: Link, size: int) -> None:
    assert Cluster(1, link).allreduce_s(size) == 0.0


@pytest.mark.parametrize("count", [0, -1])
def test_a_cluster_without_workers_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=f"a cluster of {count} workers cannot train"):
        Cluster(count, Link(1e9))


@pytest.mark.parametrize("rate", [0.0, -1e9, math.inf, math.nan])
def test_a_link_that_carries_nothing_is_refused(rate: float) -> None:
    with pytest.raises(InputError) as refusal:
        Link(rate)
    assert format_rate(rate) in str(refusal.value)


@pytest.mark.parametrize("field", ["overhead_s", "latency_s"])
@pytest.mark.parametrize("wrong", [-1e-9, math.inf, math.nan])
def test_a_time_of_a_link_is_finite_and_not_negative(field: str, wrong: float) -> None:
    with pytest.raises(InputError, match=f"{field} is {wrong}"):
        Link(1e9, **{field: wrong})


def test_a_link_introduces_itself_in_units() -> None:
    assert str(Link(1.25e9, 3e-4, 0)) == "10 Gbit/s, overhead 300 us, latency 0 s"
