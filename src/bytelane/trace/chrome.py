"""Traces as Chrome trace JSON, which Perfetto and chrome://tracing open.

Each trace is a process, each track a thread. Transfers overlap while several are in flight, so they
are spread over as many tracks as are needed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bytelane.trace.span import Span, Trace

COMPUTE_TRACK = 0


def save_chrome(traces: Sequence[Trace], path: str | Path) -> None:
    """Write several traces into one file, one under the other."""
    # Perfetto drops what begins before zero, as an update before the first forward pass does.
    zero = min((span.start_s for trace in traces for span in trace.spans), default=0.0)
    events = [e for pid, trace in enumerate(traces) for e in _events(trace, pid, min(zero, 0.0))]
    document = {"traceEvents": events, "displayTimeUnit": "ms"}
    Path(path).write_bytes(msgspec.json.encode(document))


def spread(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Give each span the first track on which nothing else runs meanwhile."""
    free_from: list[float] = []
    placed = []
    for span in sorted(spans, key=lambda s: (s.start_s, s.end_s)):
        free = (track for track, end in enumerate(free_from) if end <= span.start_s)
        track = next(free, len(free_from))
        free_from[track : track + 1] = [span.end_s]
        placed.append((track, span))
    return placed


def _events(trace: Trace, pid: int, zero: float) -> list[dict[str, Any]]:
    transfers = spread([span for span in trace.spans if span.kind == "transfer"])
    computing = [(COMPUTE_TRACK, span) for span in trace.spans if span.kind != "transfer"]
    tracks = {COMPUTE_TRACK: "compute"} | {t + 1: f"transfer {t + 1}" for t, _ in transfers}
    names = [_name("process_name", trace.source, pid, 0)]
    names += [_name("thread_name", name, pid, track) for track, name in sorted(tracks.items())]
    placed = computing + [(track + 1, span) for track, span in transfers]
    return names + [_complete(span, pid, track, zero) for track, span in placed]


def _name(what: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(span: Span, pid: int, tid: int, zero: float) -> dict[str, Any]:
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
