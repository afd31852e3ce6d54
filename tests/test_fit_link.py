"""Fitting a link: from times of all-reduces back to rate, overhead and latency."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.errors import InputError
from bytelane.measure import Sample, fit_link
from bytelane.measure.network import SIZES

rates = st.floats(1e6, 1e11)
times = st.floats(0, 0.1)
workers = st.integers(2, 64)
links = st.builds(Link, rates, times, times)
noise = st.lists(st.floats(0.5, 2), min_size=2 * len(SIZES), max_size=2 * len(SIZES))


def samples_of(cluster: Cluster, sizes: Sequence[int] = SIZES) -> list[Sample]:
    """What an ideal stopwatch would read: the latency hides as soon as two are in flight."""
    latency = cluster.link.latency_s
    return [
        Sample(size, cluster.transfer_s(size) + latency, cluster.transfer_s(size)) for size in sizes
    ]


@given(links, workers)
def test_without_noise_the_link_is_found_again(link: Link, count: int) -> None:
    cluster = Cluster(count, link)
    samples = samples_of(cluster)
    found = fit_link(samples, cluster.wire_factor)
    # The fit is as exact as the times are; a rate shows only in how they differ.
    longest, grown = samples[-1].alone_s, samples[-1].paired_s - samples[0].paired_s
    assert found.rate == pytest.approx(link.rate, rel=1e-9 * max(1, longest / grown))
    assert found.overhead_s == pytest.approx(link.overhead_s, rel=0, abs=1e-9 * longest)
    assert found.latency_s == pytest.approx(link.latency_s, rel=0, abs=1e-9 * longest)


@given(links, workers, st.permutations(SIZES))
def test_the_order_of_the_samples_does_not_matter(link: Link, count: int, sizes: list[int]) -> None:
    cluster = Cluster(count, link)
    found = fit_link(samples_of(cluster, sizes), cluster.wire_factor)
    sorted_ = fit_link(samples_of(cluster), cluster.wire_factor)
    assert found.rate == pytest.approx(sorted_.rate, rel=1e-6)


@given(links, workers, noise)
def test_noise_makes_no_negative_times(link: Link, count: int, factors: list[float]) -> None:
    cluster = Cluster(count, link)
    noisy = [
        Sample(ideal.size, ideal.alone_s * a, ideal.paired_s * b)
        for ideal, a, b in zip(samples_of(cluster), factors[::2], factors[1::2], strict=True)
    ]
    try:
        found = fit_link(noisy, cluster.wire_factor)
    except InputError:
        return  # so noisy that larger messages seem to be faster
    assert found.rate > 0
    assert found.overhead_s >= 0
    assert found.latency_s >= 0


def test_messages_in_pairs_that_are_slower_than_alone_mean_no_latency() -> None:
    found = fit_link([Sample(size, size / 1e9, size / 0.9e9) for size in SIZES], wire_factor=1.0)
    assert found.latency_s == 0.0
    assert 0.9e9 < found.rate < 1e9


def test_times_that_bend_upwards_mean_no_overhead() -> None:
    seconds = [(size / 1e9) * (1 + size / 2**21) for size in SIZES]
    found = fit_link([Sample(a, t, t) for a, t in zip(SIZES, seconds, strict=True)], 1.0)
    assert found.overhead_s == 0.0
    assert found.rate > 0


def test_the_rate_is_that_of_the_wire_not_of_the_tensor() -> None:
    samples = [Sample(size, size / 1e9, size / 1e9) for size in SIZES]
    assert fit_link(samples, wire_factor=1.5).rate == pytest.approx(1.5e9)


def test_larger_messages_that_take_less_time_are_refused() -> None:
    with pytest.raises(InputError):
        fit_link([Sample(size, 1 / size, 1 / size) for size in SIZES], wire_factor=1.0)
