"""Write traces as Chrome trace JSON, which Perfetto and chrome://tracing open.

Each trace is a process, each track a thread. Transfers overlap while several are in flight, so they
are spread over as many tracks as are needed. Arrows lead from the backward pass that completed a
gradient through its transfers to its first use. Counters show the bytes in flight and, where it is
known, how fast the link sends and receives.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from bytelane.trace.flow import flows
from bytelane.trace.span import Carried, Span, Trace

COMPUTE_TRACK = 0

Event = dict[str, Any]
Change = tuple[float, int]
"""A moment, and by how much a counter grows then."""


def save_chrome(traces: Sequence[Trace], path: str | Path) -> None:
    """Write several traces into one file, one under the other."""
    # Perfetto drops spans that begin before zero, such as an update before the first forward pass.
    zero = min((span.start_s for trace in traces for span in trace.spans), default=0.0)
    flow_ids = count(1)  # for the whole file: a viewer joins flows with the same number
    events = [
        event
        for pid, trace in enumerate(traces)
        for event in _events(trace, pid, min(zero, 0.0), flow_ids)
    ]
    document = {"traceEvents": events, "displayTimeUnit": "ms"}
    Path(path).write_bytes(msgspec.json.encode(document))


def spread(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Give each span the first track on which no other span runs meanwhile."""
    free_from: list[float] = []
    placed = []
    for span in sorted(spans, key=lambda s: (s.start_s, s.end_s)):
        free = (track for track, end in enumerate(free_from) if end <= span.start_s)
        track = next(free, len(free_from))
        free_from[track : track + 1] = [span.end_s]
        placed.append((track, span))
    return placed


def _events(trace: Trace, pid: int, zero: float, flow_ids: Iterator[int]) -> Iterator[Event]:
    transfers = [span for span in trace.spans if span.kind == "transfer"]
    placed = [(COMPUTE_TRACK, span) for span in trace.spans if span.kind != "transfer"]
    placed += [(track + 1, span) for track, span in spread(transfers)]
    tracks = {COMPUTE_TRACK, *(track for track, _ in placed)}
    yield _name("process_name", trace.source, pid, 0)
    for track in sorted(tracks):
        name = f"transfer {track}" if track != COMPUTE_TRACK else "compute"
        yield _name("thread_name", name, pid, track)
    for track, span in placed:
        yield _complete(span, pid, track, zero)
    yield from _counter("in flight", "bytes", _in_flight(transfers), pid, zero)
    for way, field in (("out", "out_bytes"), ("in", "in_bytes")):
        yield from _counter(f"link {way}", "bytes_per_s", _rates(trace.link, field), pid, zero)
    yield from _arrows(trace, {id(span): track for track, span in placed}, pid, zero, flow_ids)


def _name(what: str, name: str, pid: int, tid: int) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(span: Span, pid: int, tid: int, zero: float) -> Event:
    args: dict[str, Any] = {"iteration": span.iteration}
    if span.kind == "transfer":
        args["bytes"] = span.bytes
    return {
        "ph": "X",
        "name": f"{span.kind} {span.name}",
        "cat": span.kind,
        "pid": pid,
        "tid": tid,
        "ts": (span.start_s - zero) * 1e6,
        "dur": span.seconds * 1e6,
        "args": args,
    }


def _in_flight(transfers: Sequence[Span]) -> Iterator[Change]:
    for span in transfers:
        yield span.start_s, span.bytes
        yield span.end_s, -span.bytes


def _rates(link: Sequence[Carried], field: str) -> Iterator[Change]:
    for part in link:
        if part.end_s > part.start_s:
            # Whole numbers, so that the counter returns to exactly 0.
            rate = round(getattr(part, field) / (part.end_s - part.start_s))
            yield part.start_s, rate
            yield part.end_s, -rate


def _counter(
    name: str, unit: str, changes: Iterable[Change], pid: int, zero: float
) -> Iterator[Event]:
    together: dict[float, int] = {}
    for moment, change in changes:
        together[moment] = together.get(moment, 0) + change
    value = 0
    for moment, change in sorted(together.items()):
        if change:
            value += change
            ts = (moment - zero) * 1e6
            yield {"ph": "C", "name": name, "pid": pid, "ts": ts, "args": {unit: value}}


def _arrows(
    trace: Trace, tracks: dict[int, int], pid: int, zero: float, flow_ids: Iterator[int]
) -> Iterator[Event]:
    for flow, number in zip(flows(trace), flow_ids, strict=False):
        for place, span in enumerate(flow):
            phase = "s" if place == 0 else "f" if place == len(flow) - 1 else "t"
            yield {
                "ph": phase,
                "bp": "e",  # it belongs to the slice around it, not to the next one
                "id": number,
                "name": "gradient",
                "cat": "flow",
                "pid": pid,
                "tid": tracks[id(span)],
                # The middle, where no other slice begins or ends.
                "ts": (span.start_s + span.seconds / 2 - zero) * 1e6,
            }
