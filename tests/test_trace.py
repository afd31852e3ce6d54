"""Traces: spans on tracks, cut out by iteration, in files that Perfetto opens."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.trace import Span, Trace, save_chrome, spread


def transfer(start: float, end: float, iteration: int = 0) -> Span:
    return Span("transfer", f"{start}-{end}", start, end, iteration, bytes=4)


@st.composite
def transfers(draw: st.DrawFn, shortest: int = 1) -> list[Span]:
    # Whole seconds, and few of them: spans that touch are the interesting ones.
    pairs = st.tuples(st.integers(0, 20), st.integers(shortest, 6))
    return [transfer(start, start + length) for start, length in draw(st.lists(pairs))]


def overlap(a: Span, b: Span) -> bool:
    return a.start_s < b.end_s and b.start_s < a.end_s


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
