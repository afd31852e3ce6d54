"""Gradient flows in a trace: from a backward pass through transfers to an update or a forward."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from bytelane.trace.span import Span, Trace

Computed = dict[tuple[int, int], list[Span]]


def flows(trace: Trace) -> Iterator[tuple[Span, ...]]:
    """Yield spans that led from one to the next: a backward, transfers, an update or a forward.

    One flow for each operation and each layer that it serves. Steps that are not in the trace, as
    they take no time, are left out; a flow has two spans or more.
    """
    made = _by_iteration_and_layer(trace.spans, ("backward",))
    used = _by_iteration_and_layer(trace.spans, ("update", "forward"))
    operations: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in trace.spans:
        if span.kind == "transfer":
            operations[span.iteration, span.operation].append(span)
    for (iteration, _), transfers in operations.items():
        transfers.sort(key=lambda span: span.start_s)
        for layer in transfers[0].layers:
            before = made.get((iteration, layer), ())
            after = used.get((iteration + 1, layer), ())
            # The last gradient of a layer that has several, and the first use of many.
            source = [span for span in before if span.end_s <= transfers[0].start_s][-1:]
            target = [span for span in after if span.start_s >= transfers[-1].end_s][:1]
            flow = (*source, *transfers, *target)
            if len(flow) > 1:
                yield flow


def _by_iteration_and_layer(spans: Sequence[Span], kinds: tuple[str, ...]) -> Computed:
    found: Computed = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_s):
        if span.kind in kinds and span.layers:
            found[span.iteration, span.layers[0]].append(span)
    return found
