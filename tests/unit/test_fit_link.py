"""Fitting a link: from times of all-reduces back to rate, overhead, latency and floor."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.errors import InputError
from bytelane.measure import Sample, fit_link
from bytelane.measure.fit import relative_errors
from bytelane.measure.network import held_out_errors

SIZES = tuple(2**k for k in range(12, 23))
CELLS = [(size, in_flight) for size in SIZES for in_flight in (1, 2)]

workers = st.integers(2, 64)


@st.composite
def links(draw: st.DrawFn) -> Link:
    """Overhead and latency from next to nothing to several times what the bytes take.

    The floor holds up none, some or many of the sizes, but at least two are free.
    """
    rate = draw(st.floats(1e6, 1e11))
    mebibyte_s = 2**20 / rate
    overhead, latency = (draw(st.floats(0, 8)) * mebibyte_s for _ in range(2))
    floor = overhead + draw(st.just(0.0) | st.floats(0, 1)) * mebibyte_s
    return Link(rate, overhead, latency, floor)


noise = st.lists(st.floats(0.5, 2), min_size=len(CELLS), max_size=len(CELLS))


def played(cluster: Cluster, size: int, in_flight: int, messages: int = 4) -> float:
    """Send messages over a link, event by event; return the seconds of each."""
    link = cluster.link
    wire_s = link.overhead_s + cluster.wire_factor * size / link.rate
    over_at: list[float] = []
    known_at: list[float] = []
    link_free_at = handler_free_at = 0.0
    for number in range(messages):
        start = max(
            over_at[number - 2] if number >= 2 else 0.0,
            known_at[number - in_flight] if number >= in_flight else 0.0,
        )
        link_free_at = max(start, link_free_at) + wire_s
        handler_free_at = max(start, handler_free_at) + link.floor_s
        over_at.append(max(link_free_at, handler_free_at))
        known_at.append(over_at[-1] + link.latency_s)
    return known_at[-1] / messages


def samples_of(cluster: Cluster, cells: Sequence[tuple[int, int]] = CELLS) -> list[Sample]:
    return [Sample(size, n, 4, played(cluster, size, n)) for size, n in cells]


@given(links(), workers, st.integers(1, 9), st.integers(1, 9))
def test_the_formula_is_what_a_link_does(
    link: Link, count: int, in_flight: int, messages: int
) -> None:
    cluster = Cluster.star(count, link)
    samples = [
        Sample(size, in_flight, messages, played(cluster, size, in_flight, messages))
        for size in SIZES
    ]
    errors = relative_errors(link, samples, cluster.wire_factor)
    assert errors == pytest.approx([0.0] * len(SIZES), abs=1e-9)


@settings(max_examples=40)  # a fit costs 50 ms
@given(links(), workers)
def test_without_noise_the_link_is_found_again(link: Link, count: int) -> None:
    cluster = Cluster.star(count, link)
    samples = samples_of(cluster)
    found = fit_link(samples, cluster.wire_factor)
    longest = max(sample.seconds for sample in samples)
    assert found.rate == pytest.approx(link.rate, rel=1e-6)
    assert found.overhead_s == pytest.approx(link.overhead_s, rel=0, abs=1e-6 * longest)
    assert found.latency_s == pytest.approx(link.latency_s, rel=0, abs=1e-6 * longest)
    again = Cluster.star(count, found)
    for size in SIZES:  # a floor below the time of the smallest message cannot be seen
        assert again.transfer_s(size) == pytest.approx(cluster.transfer_s(size), rel=1e-6)


@settings(max_examples=40)  # a fit costs 50 ms
@given(links(), workers)
def test_without_noise_half_of_the_sizes_tell_the_others(link: Link, count: int) -> None:
    cluster = Cluster.star(count, link)
    errors = held_out_errors(samples_of(cluster), cluster.wire_factor)
    assert len(errors) == 5 * 2  # every other of eleven sizes, two numbers in flight
    assert errors == pytest.approx([0.0] * 10, abs=1e-6)


@settings(max_examples=40)  # a fit costs 50 ms
@given(links(), workers, st.permutations(CELLS))
def test_the_order_of_the_samples_does_not_matter(
    link: Link, count: int, cells: list[tuple[int, int]]
) -> None:
    cluster = Cluster.star(count, link)
    found = fit_link(samples_of(cluster, cells), cluster.wire_factor)
    sorted_ = fit_link(samples_of(cluster), cluster.wire_factor)
    assert found.rate == pytest.approx(sorted_.rate, rel=1e-6)


@settings(max_examples=40)  # a fit costs 50 ms
@given(links(), workers, noise)
def test_noise_makes_no_negative_times(link: Link, count: int, factors: list[float]) -> None:
    cluster = Cluster.star(count, link)
    noisy = [
        ideal._replace(seconds=ideal.seconds * factor)
        for ideal, factor in zip(samples_of(cluster), factors, strict=True)
    ]
    try:
        found = fit_link(noisy, cluster.wire_factor)
    except InputError:
        return  # so noisy that larger messages seem to be faster
    assert found.rate > 0
    assert found.overhead_s >= 0
    assert found.latency_s >= 0
    assert found.floor_s >= 0


def test_several_in_flight_that_are_slower_than_one_mean_no_latency() -> None:
    samples = [Sample(size, n, 4, size / (1e9 if n == 1 else 0.9e9)) for size, n in CELLS]
    found = fit_link(samples, wire_factor=1.0)
    assert found.latency_s == 0.0
    assert 0.9e9 < found.rate < 1e9


def test_times_that_bend_upwards_mean_no_overhead() -> None:
    samples = [Sample(size, n, 4, size / 1e9 * (1 + size / 2**21)) for size, n in CELLS]
    found = fit_link(samples, 1.0)
    assert found.overhead_s == 0.0
    assert found.rate > 0


def test_what_would_be_negative_is_left_out_before_the_rest_is_fitted() -> None:
    """To cut it off afterwards would leave a line that misses all the points."""
    samples = [Sample(size, 2, 1, (size - 2**11) / 1e9) for size in SIZES]
    found = fit_link(samples, 1.0)
    assert max(relative_errors(found, samples, 1.0)) > 0 > min(relative_errors(found, samples, 1.0))


def test_the_rate_is_that_of_the_wire_not_of_the_tensor() -> None:
    samples = [Sample(size, n, 4, size / 1e9) for size, n in CELLS]
    assert fit_link(samples, wire_factor=1.5).rate == pytest.approx(1.5e9)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(lambda size: 1 / size, id="less time"),
        pytest.param(lambda size: 0.01, id="the same time"),
        pytest.param(lambda size: 0.009 if size == SIZES[-1] else 0.01, id="less in the end"),
    ],
)
def test_larger_messages_that_do_not_take_longer_are_refused(
    seconds: Callable[[int], float],
) -> None:
    with pytest.raises(InputError, match="larger messages were not slower"):
        fit_link([Sample(size, n, 4, seconds(size)) for size, n in CELLS], wire_factor=1.0)


def test_what_is_uncertain_counts_less() -> None:
    """Small messages that happen to be slow would otherwise make an overhead of it, and a rate."""
    sure = [Sample(size, n, 4, size / 1e9, 0.001) for size, n in CELLS]
    unsure = [s._replace(seconds=2 * s.seconds, uncertainty=0.5) for s in sure if s.size < 2**20]
    large = [s for s in sure if s.size >= 2**20]
    found = fit_link([*unsure, *large], 1.0)
    assert found.rate == pytest.approx(1e9, rel=0.01)
    careless = fit_link([s._replace(uncertainty=0.0) for s in [*unsure, *large]], 1.0)
    assert abs(careless.rate / 1e9 - 1) > abs(found.rate / 1e9 - 1)
