"""A cluster: what an all-reduce puts on each worker's link, and for how long."""

import math
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Host, Link, LinkUse
from bytelane.errors import InputError
from bytelane.units import format_rate

LINK = Link(1e9)
workers = st.integers(2, 4096)
rates = st.floats(1, 1e12)
times = st.floats(0, 10)
sizes = st.integers(1, 2**40)
links = st.builds(Link, rates, times, times, times)


@pytest.mark.parametrize(("count", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75), (64, 1.96875)])
def test_the_wire_factor_is_that_of_a_bandwidth_optimal_all_reduce(
    count: int, factor: float
) -> None:
    assert Cluster.star(count, Link(1e9)).wire_factor == factor


@given(workers)
def test_the_wire_factor_rises_with_the_workers_and_stays_below_two(count: int) -> None:
    fewer, more = Cluster.star(count, Link(1.0)), Cluster.star(count + 1, Link(1.0))
    assert 1 <= fewer.wire_factor < more.wire_factor < 2


@given(workers, links, sizes)
def test_an_all_reduce_takes_its_overhead_and_the_time_of_its_bytes_or_the_floor(
    count: int, link: Link, size: int
) -> None:
    on_the_wire = Fraction(2 * (count - 1) * size, count)
    sending = Fraction(link.overhead_s) + on_the_wire / Fraction(link.rate)
    expected = max(Fraction(link.floor_s), sending)
    found = Cluster.star(count, link).transfer_s(size)
    assert found == pytest.approx(float(expected), rel=1e-12, abs=0)


@given(workers, rates, times, times, times, sizes)
def test_the_latency_does_not_occupy_the_link(
    count: int, rate: float, overhead: float, one: float, other: float, size: int
) -> None:
    near, far = (Cluster.star(count, Link(rate, overhead, latency)) for latency in (one, other))
    assert near.transfer_s(size) == far.transfer_s(size)


@given(links, sizes)
def test_one_worker_has_nobody_to_talk_to(link: Link, size: int) -> None:
    assert Cluster.star(1, link).transfer_s(size) == 0.0


@pytest.mark.parametrize("count", [0, -1])
def test_a_cluster_without_workers_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=f"a cluster of {count} workers cannot train"):
        Cluster.star(count, Link(1e9))


@pytest.mark.parametrize("rate", [0.0, -1e9, math.inf, math.nan])
def test_a_link_that_carries_nothing_is_refused(rate: float) -> None:
    with pytest.raises(InputError) as refusal:
        Link(rate)
    assert format_rate(rate) in str(refusal.value)


@pytest.mark.parametrize("field", ["overhead_s", "latency_s", "floor_s"])
@pytest.mark.parametrize("wrong", [-1e-9, math.inf, math.nan])
def test_a_time_of_a_link_is_finite_and_not_negative(field: str, wrong: float) -> None:
    with pytest.raises(InputError, match=f"{field} is {wrong}"):
        Link(1e9, **{field: wrong})


@pytest.mark.parametrize("wrong", [0, -1, 65, 1.5, True])
def test_a_link_has_some_messages_under_way_at_once(wrong: Any) -> None:
    with pytest.raises(InputError, match="at_once is"):
        Link(1e9, at_once=wrong)


def test_a_link_introduces_itself_in_units() -> None:
    assert str(Link(1.25e9, at_once=1)) == "10 Gbit/s, overhead 0 s, latency 0 s, 1 at once"
    assert str(Link(1.25e9, 3e-4, 0)) == "10 Gbit/s, overhead 300 us, latency 0 s"
    assert str(Link(1.25e9, 0, 2e-5, 1e-3)) == (
        "10 Gbit/s, overhead 0 s, latency 20 us, floor 1 ms"
    )


# Servers


def test_servers_on_the_workers_hosts_keep_their_share_at_home() -> None:
    assert Cluster.star(4, LINK, servers=4).wire_factor == 0.75
    assert Cluster.star(4, LINK, servers=4).sync == "ps"
    assert Cluster.star(1, LINK, servers=1).wire_factor == 0


@pytest.mark.parametrize(("workers", "servers", "factor"), [(8, 2, 4), (2, 8, 1), (1, 1, 1)])
def test_the_busier_side_of_separate_servers_sets_the_pace(
    workers: int, servers: int, factor: float
) -> None:
    assert Cluster.star(workers, LINK, servers=servers, colocated=False).wire_factor == factor


@given(st.integers(1, 100))
def test_with_a_shared_link_servers_load_it_as_a_ring_does(count: int) -> None:
    shared = Cluster.star(count, LINK, servers=count, shared_link=True)
    assert shared.load_factor == 2 * shared.wire_factor == Cluster.star(count, LINK).load_factor


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ({"shared_link": True}, "a shared link is that of a worker with a server on its host"),
        ({"servers": 4, "colocated": False, "shared_link": True}, "there is none here"),
        ({"servers": 3}, "3 servers cannot each share a host with one of 4"),
        ({"servers": -1}, "-1 servers are not possible"),
        ({"compute_factors": (1.0, 2.0)}, "2 compute factors for 4 workers"),
        ({"compute_factors": (1.0, 1.0, 1.0, 0.0)}, "factor of 0.0 is not possible"),
    ],
)
def test_impossible_clusters_are_refused(kind: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Cluster.star(4, LINK, **kind)


# Hosts that differ


def test_all_hosts_of_a_star_have_a_cable_to_one_switch() -> None:
    cluster = Cluster.star(2, LINK, servers=1, colocated=False)
    assert [(host.ranks, host.servers) for host in cluster.hosts] == [(1, 0), (1, 0), (0, 1)]
    assert cluster.topology.switches == 1
    assert cluster.topology.cables(len(cluster.hosts)) == ((0, 3), (1, 3), (2, 3))


def test_a_collective_of_all_is_as_fast_as_the_slowest_link() -> None:
    fast, slow = Link(8.0, 0.1, 0.3, at_once=4), Link(4.0, 0.2, 0.1, 0.5, down_rate=2.0)
    cluster = Cluster((Host(fast), Host(slow)))
    assert cluster.link == Link(4.0, 0.2, 0.3, 0.5, at_once=2, down_rate=2.0)
    assert cluster.use_of("all-reduce").byte_s == 1 / 2
    assert " up, " in str(slow)
    assert " up, " not in str(fast)


def uses(*hosts: Host) -> tuple[LinkUse, LinkUse]:
    return Cluster(hosts).use_of("push"), Cluster(hosts).use_of("pull")


def test_pushes_go_up_and_pulls_come_down() -> None:
    worker = Host(Link(8.0, down_rate=4.0))
    push, pull = uses(worker, Host(Link(64.0), ranks=0, servers=1))
    assert (push.byte_s, push.up, push.down) == (1 / 8, 1.0, 0.0)
    assert (pull.byte_s, pull.up, pull.down) == (1 / 4, 0.0, 1.0)
    # Two workers load a server's link twice, in the other direction.
    push, pull = uses(worker, worker, Host(Link(8.0, down_rate=2.0), ranks=0, servers=1))
    assert (push.byte_s, pull.byte_s) == (2 / 2, 1 / 4)


def test_ranks_of_one_host_share_its_link_and_need_none_among_themselves() -> None:
    assert Cluster((Host(LINK, ranks=4),)).wire_factor == 0
    assert Cluster((Host(LINK, ranks=2),) * 2).wire_factor == 2 * 3 / 4
    assert Cluster((Host(LINK, ranks=2, servers=1),) * 2).wire_factor == 2 * 1 / 2


@given(st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_a_star_says_what_it_was_made_of(count: int, servers: int, colocated: bool) -> None:
    servers = count if servers and colocated else servers
    factors = tuple(1.0 + number for number in range(count))
    cluster = Cluster.star(count, LINK, servers, colocated, factors)
    assert (cluster.workers, cluster.servers, cluster.link) == (count, servers, LINK)
    assert cluster.colocated == (colocated or not servers)
    assert cluster.compute_factors == (factors if count > 1 else ())
    assert cluster.with_compute_factors((1.0,) * count).compute_factors == ()
    other = Link(3.0)
    assert cluster.with_link(other) == Cluster.star(count, other, servers, colocated, factors)
    assert msgspec.json.decode(msgspec.json.encode(cluster), type=Cluster) == cluster


@pytest.mark.parametrize(
    ("hosts", "complaint"),
    [
        (lambda: (), "a cluster of 0 workers cannot train"),
        (lambda: (Host(LINK, ranks=0, servers=1),), "a cluster of 0 workers cannot train"),
        (lambda: (Host(LINK, ranks=-1),), "ranks is -1"),
        (lambda: (Host(LINK, servers=True),), "servers is True"),
        (lambda: (Host(LINK, compute_factor=math.nan),), "a compute factor of nan"),
        (lambda: (Host(Link(1.0, down_rate=0.0)),), "a link of 0 bit/s"),
    ],
)
def test_impossible_hosts_are_refused(hosts: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Cluster(hosts())
