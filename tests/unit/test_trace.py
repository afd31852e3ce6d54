"""Traces: spans on tracks, cut out by iteration, in files that Perfetto opens."""

import json
from itertools import combinations, count, groupby, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, make_policy, policies_for
from bytelane.job import Job, Layer, Tensor
from bytelane.sim import Simulation, simulate
from bytelane.trace import Carried, Span, Trace, flows, save_chrome, spread
from strategies import jobs


def transfer(start: float, end: float, iteration: int = 0) -> Span:
    return Span("transfer", f"{start}-{end}", start, end, iteration, bytes=4)


@st.composite
def transfers(draw: st.DrawFn, shortest: int = 1) -> list[Span]:
    # Whole seconds, and few of them: spans that touch are the interesting ones.
    pairs = st.tuples(st.integers(0, 20), st.integers(shortest, 6))
    return [transfer(start, start + length) for start, length in draw(st.lists(pairs))]


def overlap(a: Span, b: Span) -> bool:
    return a.start_s < b.end_s and b.start_s < a.end_s


ways = [(s, p) for s in ("allreduce", "ps") for p in policies_for(s) if p != "optimal"]


def simulated(job: Job, way: tuple[str, str] = ("allreduce", "fifo")) -> Simulation:
    cluster = Cluster.star(2, Link(8.0, 0.125, 0.25), 2 if way[0] == "ps" else 0)
    return simulate(
        job, cluster, make_policy(way[1], job, cluster, Knobs(16, 32, 40)), "interpreted"
    )


simulations = st.builds(simulated, jobs(), st.sampled_from(ways))


def read(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text())
    assert document["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


# Tracks


@given(transfers(shortest=0))
def test_nothing_overlaps_on_one_track_and_nothing_is_lost(spans: list[Span]) -> None:
    placed = spread(spans)
    assert not any(a[0] == b[0] and overlap(a[1], b[1]) for a, b in combinations(placed, 2))
    assert sorted(span.name for _, span in placed) == sorted(span.name for span in spans)


@given(transfers())
def test_there_are_as_many_tracks_as_spans_at_the_busiest_moment(spans: list[Span]) -> None:
    # The busiest moment is one at which some span begins.
    depths = [sum(a.start_s <= b.start_s < a.end_s for a in spans) for b in spans]
    assert {track for track, _ in spread(spans)} == set(range(max(depths, default=0)))


# Iterations


def three_iterations() -> Trace:
    spans = [
        Span("forward", "a", 10, 12, 0),
        Span("backward", "a", 12, 14, 0),
        transfer(14, 21, 0),
        Span("forward", "a", 20, 22, 1),
        Span("backward", "a", 22, 24, 1),
        transfer(24, 30, 1),
        Span("forward", "a", 30, 32, 2),
    ]
    return Trace("rank 0", tuple(spans), {0: 10.0, 1: 20.0, 2: 30.0})


def test_an_iteration_lasts_until_the_next_forward_pass() -> None:
    trace = three_iterations()
    assert [trace.iteration_s(k) for k in range(3)] == [10, 10, None]


def test_an_iteration_is_what_runs_during_it_with_time_from_its_beginning() -> None:
    cut = three_iterations().from_iteration(1)
    assert cut.source == "rank 0"
    assert cut.iteration_start_s == {1: 0.0, 2: 10.0}
    # The transfer of iteration 0 was still under way; that of iteration 1 ends as the next begins.
    assert [(s.kind, s.start_s, s.end_s, s.iteration) for s in cut.spans] == [
        ("transfer", -6, 1, 0),
        ("forward", 0, 2, 1),
        ("backward", 2, 4, 1),
        ("transfer", 4, 10, 1),
    ]


def test_what_was_on_the_link_is_cut_out_as_well() -> None:
    link = tuple(Carried(s, e, 8.0, 4.0) for s, e in ((14, 19), (19, 21), (24, 30), (30, 31)))
    trace = msgspec.structs.replace(three_iterations(), link=link)
    assert trace.from_iteration(1).link == (Carried(-1, 1, 8, 4), Carried(4, 10, 8, 4))


def test_the_last_iteration_is_kept_to_its_end() -> None:
    cut = three_iterations().from_iteration(1, count=5)
    assert cut.iteration_start_s == {1: 0.0, 2: 10.0}
    assert cut.spans[-1] == Span("forward", "a", 10, 12, 2)


@given(transfers(), st.integers(0, 2), st.integers(1, 3))
def test_cutting_keeps_durations_and_only_what_runs_then(
    spans: list[Span], first: int, count: int
) -> None:
    trace = Trace("any", tuple(spans), {0: 0.0, 1: 6.0, 2: 12.0})
    begin, end = first * 6.0, (first + count) * 6.0 if first + count < 3 else float("inf")
    cut = trace.from_iteration(first, count)
    during = [s for s in spans if s.end_s > begin and s.start_s < end]
    assert [s.name for s in cut.spans] == [s.name for s in during]
    assert [s.seconds for s in cut.spans] == [s.seconds for s in during]


# From gradient to use


def names(flow: tuple[Span, ...]) -> list[str]:
    return [f"{span.kind} {span.name}" for span in flow]


def test_a_flow_leads_from_a_backward_through_its_transfer_to_a_forward() -> None:
    layers = (Layer("first", 1.0, 1.0), Layer("last", 1.0, 1.0, 0.5))
    job = Job("two", layers, (Tensor("a", 8, (0,)), Tensor("b", 8, (1,))))
    found = flows(simulated(job).trace.from_iteration(1, count=2))
    led = [names(flow) for flow in found if flow[0].iteration == 1]
    assert sorted(led) == [
        ["backward first", "transfer a", "forward first"],
        ["backward last", "transfer b", "update last"],
    ]


def test_with_a_parameter_server_a_flow_passes_push_and_pull() -> None:
    job = Job("one", (Layer("l", 1.0, 1.0),), (Tensor("t", 32, (0,)),))
    first, *_ = flows(simulated(job, ("ps", "bytescheduler")).trace)
    assert names(first) == ["backward l", "transfer push t@0 B", "transfer pull t@0 B", "forward l"]


def test_an_operation_that_carries_several_layers_has_a_flow_for_each() -> None:
    layers = tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(3))
    job = Job("three", layers, tuple(Tensor(f"t{i}", 8, (i,)) for i in range(3)))
    sent = [f for f in flows(simulated(job, ("allreduce", "dear")).trace) if f[0].iteration == 1]
    assert [flow[0].name for flow in sent] == ["l0", "l1", "l2"]
    assert [len(flow) for flow in sent] == [4, 4, 4]


def test_layers_of_the_same_name_are_told_apart() -> None:
    layers = (Layer("same", 1.0, 1.0), Layer("same", 2.0, 3.0))
    job = Job("j", layers, (Tensor("a", 8, (0,)), Tensor("b", 8, (1,))))
    for flow in flows(simulated(job).trace):
        assert len({span.layers for span in flow}) == 1


def test_of_several_gradients_of_a_layer_the_last_one_before_the_transfer_is_meant() -> None:
    spans = (
        Span("backward", "l", 0, 1, 0, layers=(3,)),
        Span("backward", "l", 1, 2, 0, layers=(3,)),
        Span("backward", "l", 4, 5, 0, layers=(3,)),
        Span("transfer", "l.weight", 2.5, 4, 0, 4, (3,), 0),
        Span("forward", "l", 3, 3.5, 1, layers=(3,)),
        Span("forward", "l", 6, 7, 1, layers=(3,)),
    )
    assert list(flows(Trace("rank 0", spans, {}))) == [(spans[1], spans[3], spans[5])]


def test_a_transfer_that_leads_nowhere_in_this_trace_has_no_flow() -> None:
    alone = Span("transfer", "t", 0, 1, 0, 4, (0,), 0)
    assert list(flows(Trace("any", (alone, transfer(2, 3)), {}))) == []


def test_a_real_trace_tells_whose_gradient_a_transfer_carried() -> None:
    pytest.importorskip("torch")
    from bytelane.core import bucket_plan
    from bytelane.runtime.sync import Transfer
    from bytelane.runtime.torch.profiler import Profiler

    watch = Profiler(keep=9, clock=count().__next__)
    watch.start("backward", "the loop")
    watch.stop("backward", "fc")  # until 1
    watch.start("backward", "the loop")
    watch.stop("backward", "conv")  # until 3
    watch.begin_iteration()
    plan = bucket_plan([8, 8], bucket_bytes=8)  # the last tensor first
    sent = [Transfer(0, 1.5, 2.5), Transfer(1, 3.5, 3.75)]
    watch.add_transfers(sent, plan, ["conv.w", "fc.w"], [("conv",), ("fc", "tied")], iteration=0)
    for module in ("conv", "fc"):
        watch.start("forward", module)
    watch.stop()
    assert sorted(map(names, flows(watch.trace("rank 0")))) == [
        ["backward conv", "transfer conv.w", "forward conv"],
        ["backward fc", "transfer fc.w", "forward fc"],
    ]


@given(simulations)
def test_every_transfer_of_a_whole_iteration_is_between_its_gradient_and_its_use(
    found: Simulation,
) -> None:
    trace = found.trace
    led = [flow for flow in flows(trace) if flow[0].iteration == 1]
    in_flows = {id(span) for flow in led for span in flow}
    for span in trace.spans:
        if span.kind == "transfer" and span.iteration == 1:
            assert id(span) in in_flows
    for flow in led:
        assert flow[0].kind == "backward"
        assert all(span.kind == "transfer" for span in flow[1:-1])
        assert all(a.end_s <= b.start_s for a, b in pairwise(flow))
        (layer,) = flow[0].layers
        assert all(layer in span.layers for span in flow)


# Files


def test_each_trace_is_a_process_and_each_track_a_thread_with_a_name(tmp_path: Path) -> None:
    spans = (Span("forward", "conv1", 0, 2, 7), transfer(1, 3), transfer(2, 4), transfer(3, 5))
    save_chrome([Trace("real", spans, {}), Trace("simulator", (), {})], tmp_path / "t.json")
    named = [e for e in read(tmp_path / "t.json") if e["ph"] == "M"]
    assert [(e["pid"], e["tid"], e["name"], e["args"]["name"]) for e in named] == [
        (0, 0, "process_name", "real"),
        (0, 0, "thread_name", "compute"),
        (0, 1, "thread_name", "transfer 1"),
        (0, 2, "thread_name", "transfer 2"),
        (1, 0, "process_name", "simulator"),
        (1, 0, "thread_name", "compute"),
    ]


def test_spans_are_complete_events_in_microseconds(tmp_path: Path) -> None:
    spans = (Span("update", "conv1", 0.5, 0.75, 7), Span("transfer", "fc6@8 MiB", 1, 3, 7, 2**20))
    save_chrome([Trace("real", spans, {})], tmp_path / "t.json")
    update, sent = [e for e in read(tmp_path / "t.json") if e["ph"] == "X"]
    assert update == {
        "ph": "X", "name": "update conv1", "cat": "update", "pid": 0, "tid": 0,
        "ts": 5e5, "dur": 2.5e5, "args": {"iteration": 7},
    }  # fmt: skip
    assert (sent["name"], sent["tid"], sent["ts"], sent["dur"]) == (
        "transfer fc6@8 MiB",
        1,
        1e6,
        2e6,
    )
    assert sent["args"] == {"iteration": 7, "bytes": 2**20}


@given(st.lists(transfers(), max_size=3), st.text())
def test_every_span_is_in_the_file_once(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[Span]], source: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    save_chrome([Trace(source, tuple(spans), {}) for spans in groups], path)
    written = [(e["pid"], e["name"]) for e in read(path) if e["ph"] == "X"]
    given = [(pid, f"transfer {s.name}") for pid, spans in enumerate(groups) for s in spans]
    assert sorted(written) == sorted(given)


def test_no_event_is_before_time_zero_since_perfetto_drops_those(tmp_path: Path) -> None:
    save_chrome([three_iterations().from_iteration(1)], tmp_path / "t.json")
    events = [e for e in read(tmp_path / "t.json") if e["ph"] == "X"]
    assert len(events) == 4
    assert min(e["ts"] for e in events) >= 0


def written(path: Path, traces: list[Trace]) -> list[dict[str, Any]]:
    save_chrome(traces, path)
    return read(path)


@given(st.lists(simulations, min_size=1, max_size=2))
def test_every_end_of_an_arrow_is_inside_the_slice_that_it_belongs_to(
    tmp_path_factory: pytest.TempPathFactory, found: list[Simulation]
) -> None:
    path = tmp_path_factory.getbasetemp() / "arrows.json"
    events = written(path, [one.trace for one in found])
    slices = [e for e in events if e["ph"] == "X"]
    arrows = [e for e in events if e["ph"] in "stf"]
    for event in arrows:
        around = [
            e
            for e in slices
            if (e["pid"], e["tid"]) == (event["pid"], event["tid"])
            and e["ts"] <= event["ts"] <= e["ts"] + e["dur"]
        ]
        assert len(around) == 1
    expected = [flow for one in found for flow in flows(one.trace)]
    joined = [list(events) for _, events in groupby(arrows, key=lambda e: int(e["id"]))]
    assert len({e["id"] for e in arrows}) == len(joined) == len(expected)
    for steps, flow in zip(joined, expected, strict=True):
        assert [e["ph"] for e in steps] == ["s", *"t" * (len(flow) - 2), "f"]
        assert [e["ts"] for e in steps] == sorted(e["ts"] for e in steps)
        assert {(e["cat"], e["name"], e["bp"]) for e in steps} == {("flow", "gradient", "e")}


def counters(events: list[dict[str, Any]], name: str, unit: str) -> list[tuple[float, int]]:
    """Return when a counter changes, in microseconds, and its value from then on."""
    mine = [e for e in events if e["ph"] == "C" and e["name"] == name]
    assert all(e["pid"] == 0 and e["args"].keys() == {unit} for e in mine)
    return [(e["ts"], e["args"][unit]) for e in mine]


def test_a_counter_shows_the_bytes_in_flight(tmp_path: Path) -> None:
    spans = (Span("transfer", "a", 0, 2, 0, 5), Span("transfer", "b", 1, 2, 0, 7), transfer(2, 3))
    events = written(tmp_path / "t.json", [Trace("t", spans, {})])
    assert {e["name"] for e in events if e["ph"] == "C"} == {"in flight"}
    assert counters(events, "in flight", "bytes") == [(0, 5), (1e6, 12), (2e6, 4), (3e6, 0)]


def test_counters_show_how_fast_the_link_sends_and_receives(tmp_path: Path) -> None:
    # Two parts of one message, one that follows at once, one that takes no time, and one later.
    link = [(0, 2, 8, 6), (0, 2, 4, 0), (2, 3, 9, 3), (3, 3, 5, 5), (4, 8, 0, 40)]
    trace = Trace("t", (), {}, tuple(Carried(*part) for part in link))
    events = written(tmp_path / "t.json", [trace])
    assert counters(events, "link out", "bytes_per_s") == [(0, 6), (2e6, 9), (3e6, 0)]
    assert counters(events, "link in", "bytes_per_s") == [(0, 3), (3e6, 0), (4e6, 10), (8e6, 0)]


@given(simulations)
def test_a_simulated_link_carries_every_byte_no_faster_than_it_can(found: Simulation) -> None:
    trace, rate = found.trace, found.cluster.link.rate
    size = 3 * found.cluster.wire_factor * found.job.total_bytes
    assert sum(part.out_bytes for part in trace.link) == pytest.approx(size)
    assert sum(part.in_bytes for part in trace.link) == pytest.approx(size)
    messages: dict[tuple[float, float], list[Carried]] = {}
    for part in trace.link:
        messages.setdefault((part.start_s, part.end_s), []).append(part)
    for (start_s, end_s), parts in messages.items():
        could = rate * (end_s - start_s) * (1 + 1e-9)
        assert sum(part.out_bytes for part in parts) <= could
        assert sum(part.in_bytes for part in parts) <= could


@given(simulations)
def test_a_transfer_is_on_the_link_between_its_launch_and_its_end(found: Simulation) -> None:
    sent = [span for span in found.trace.spans if span.kind == "transfer"]
    assert len(sent) == len(found.trace.link)
    starts, ends = (sorted(getattr(p, k) for p in found.trace.link) for k in ("start_s", "end_s"))
    assert all(a <= b for a, b in zip(sorted(s.start_s for s in sent), starts, strict=True))
    # The end is known a latency after the last byte.
    known = sorted(span.end_s - found.cluster.link.latency_s for span in sent)
    assert known == pytest.approx(ends)
