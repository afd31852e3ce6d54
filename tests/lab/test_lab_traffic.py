"""Background flows: what begins when, what becomes of them, and that they are real."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster.sizes import WEB_SEARCH, Sizes
from bytelane.errors import InputError, LabError
from bytelane.lab import FlowRecord, Lab, Workload
from bytelane.lab.traffic import report
from labs import need

pytestmark = pytest.mark.timeout(60)

# Arrivals


@given(st.integers(), st.integers(2, 8), st.data())
def test_the_same_seed_makes_the_same_flows(seed: int, hosts: int, data: st.DataObject) -> None:
    host = data.draw(st.integers(0, hosts - 1))
    one, same = (
        list(itertools.islice(Workload(50, WEB_SEARCH, seed=seed).arrivals(host, hosts), 20))
        for _ in range(2)
    )
    assert one == same
    assert one != list(
        itertools.islice(Workload(50, WEB_SEARCH, seed=seed + 1).arrivals(host, hosts), 20)
    )


@given(st.integers(2, 8), st.floats(0.1, 20), st.integers())
def test_flows_are_in_order_in_time_and_to_others(hosts: int, seconds: float, seed: int) -> None:
    workload = Workload(10, WEB_SEARCH, seconds=seconds, seed=seed)
    for host in range(hosts):
        found = list(workload.arrivals(host, hosts))
        assert [one.at_s for one in found] == sorted(one.at_s for one in found)
        assert all(0 < one.at_s < seconds for one in found)
        assert {one.destination for one in found} <= set(range(hosts)) - {host}


def test_hosts_have_different_flows() -> None:
    workload = Workload(10, WEB_SEARCH, seconds=10)
    assert next(workload.arrivals(0, 3)) != next(workload.arrivals(1, 3))


def test_gaps_are_poissons_and_sizes_the_distributions() -> None:
    count = 20_000
    found = list(itertools.islice(Workload(100, WEB_SEARCH).arrivals(0, 5), count))
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(found)]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.01, rel=0.03)
    assert spread == pytest.approx(mean, rel=0.05)
    assert sum(one.bytes for one in found) / count == pytest.approx(WEB_SEARCH.mean_bytes, rel=0.05)
    for other in range(1, 5):
        share = sum(one.destination == other for one in found) / count
        assert share == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"flows_per_s": 0}, "0 flows per second"),
        ({"flows_per_s": math.nan}, "nan flows per second"),
        ({"flows_per_s": 1, "seconds": 0}, "0 seconds of traffic"),
        ({"flows_per_s": 1, "seconds": math.inf}, "inf seconds of traffic"),
        ({"flows_per_s": 1, "band": "highest"}, "'highest' is not one of high, normal, low"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Workload(sizes=WEB_SEARCH, **options)


# The report

records = st.lists(
    st.builds(
        FlowRecord,
        st.floats(0, 100),
        st.sampled_from([1, 100_000, 100_001, 9_999_999, 10_000_000, 30_000_000]),
        st.none() | st.floats(1e-4, 100),
    )
)


@given(records)
def test_every_flow_is_in_one_class_and_in_all(flows: list[FlowRecord]) -> None:
    *parts, everything = report(flows).classes
    assert [one.name for one in (*parts, everything)] == ["small", "medium", "large", "all"]
    assert sum(one.flows for one in parts) == everything.flows == len(flows)
    assert sum(one.unfinished for one in parts) == everything.unfinished


@given(records)
def test_quantiles_are_in_order_and_within_what_happened(flows: list[FlowRecord]) -> None:
    for one in report(flows).classes:
        if one.flows == one.unfinished:
            assert (one.mean_s, one.p50_s, one.p90_s, one.p99_s) == (None,) * 4
        else:
            took = [flow.took_s for flow in flows if flow.took_s is not None]
            assert one.p50_s is not None
            assert one.p90_s is not None
            assert one.p99_s is not None
            assert min(took) <= one.p50_s <= one.p90_s <= one.p99_s <= max(took)


def test_the_classes_end_where_the_literature_says() -> None:
    sizes = [100_000, 100_001, 9_999_999, 10_000_000]
    found = report([FlowRecord(1, size, 1.0) for size in sizes]).classes
    assert [one.flows for one in found] == [1, 2, 1, 4]


def test_figures_of_a_class() -> None:
    flows = [FlowRecord(0, 1, float(ms)) for ms in range(1, 102)]
    (small, *_) = report(flows).classes
    assert (small.mean_s, small.p50_s, small.p90_s, small.p99_s) == (51, 51, 91, 100)


def test_the_margin_leaves_out_the_first_and_the_last() -> None:
    flows = [FlowRecord(float(at_s), 1, 1.0) for at_s in range(11)]
    assert report(flows, 2).classes[-1].flows == 7
    assert len(report(flows, 2).records) == 11
    with pytest.raises(InputError, match="no flow begins within 6 s of margin"):
        report(flows, 6)
    for wrong in (-1.0, math.nan):
        with pytest.raises(InputError, match="use 0 or more"):
            report(flows, wrong)


# For real


def test_real_flows_arrive_and_are_those_that_were_drawn() -> None:
    need("namespace")
    sizes = Sizes((1000, 300_000), (0, 1))
    with Lab(3, "200Mbit", priority="htb") as lab:
        found = lab.traffic(flows_per_s=15, sizes=sizes, band="high", seconds=1.5, seed=7).wait()
    drawn = [
        (arrival.at_s, arrival.bytes)
        for host in range(3)
        for arrival in Workload(15, sizes, "high", 1.5, 7).arrivals(host, 3)
    ]
    assert sorted((flow.at_s, flow.bytes) for flow in found.records) == sorted(drawn)
    assert found.classes[-1].unfinished == 0
    for flow in found.records:
        # Not below what the link allows beyond its two buckets.
        assert flow.took_s is not None
        assert flow.took_s > (flow.bytes - 150_000) / 25e6


def test_traffic_goes_on_beside_a_command_until_it_is_stopped() -> None:
    need("namespace")
    with Lab(2, "100Mbit") as lab:
        background = lab.traffic(0.3, sizes=Sizes((1000, 20_000), (0, 1)))
        assert lab.run(["sleep", "0.5"]) == 0
        found = background.stop()
    assert found.classes[-1].flows > 10
    assert found.classes[-1].unfinished < found.classes[-1].flows


def test_flows_under_way_at_the_end_are_unfinished() -> None:
    need("namespace")
    with Lab(2, "1Mbit") as lab:
        background = lab.traffic(flows_per_s=20, sizes=Sizes((1e8, 1e8), (0, 1)))
        lab.run(["sleep", "0.7"])
        found = background.stop()
    assert found.classes[2].flows == found.classes[2].unfinished > 0


def test_what_cannot_be_is_refused() -> None:
    need("namespace")
    with Lab(2, "100Mbit") as lab:
        for load, flows in ((None, None), (0.5, 3.0)):
            with pytest.raises(InputError, match="either a load or flows per second"):
                lab.traffic(load, flows_per_s=flows)
        endless = lab.traffic(0.1)
        with pytest.raises(InputError, match="no end; stop it"):
            endless.wait()
        with pytest.raises(LabError, match="the traffic has failed"):
            lab.traffic(0.1)  # the port is taken


def test_pacing_has_no_background() -> None:
    need("pacing")
    with (
        Lab(2, "100Mbit", mode="pacing") as lab,
        pytest.raises(InputError, match="no shared links"),
    ):
        lab.traffic(0.1)
