"""Turn the simulator's log into trace spans: computing, transfers and link use."""

from collections.abc import Iterator, Sequence
from math import isnan

import numpy as np

from bytelane.cluster import Cluster
from bytelane.core import Pieces, Plan, Policy, label
from bytelane.job import Job
from bytelane.sim.layout import Moments
from bytelane.trace import Carried, Kind, Span

LinkShares = tuple[list[float], list[float]]


def compute_spans(job: Job, log: Moments, worker: int = 0) -> Iterator[Span]:
    """Yield the computing of one worker in the iterations that were kept."""
    zero = _zero(log)
    for row in range(log.step_start.shape[0]):
        starts, ends = log.step_start[row, worker] - zero, log.step_end[row, worker] - zero
        times = zip(steps(job), starts.tolist(), ends.tolist(), strict=True)
        for (kind, name, layers), start, end in times:
            if end > start:
                yield Span(kind, name, start, end, row, layers=layers)


def transfer_spans(
    job: Job, pieces: Pieces, log: Moments, stages: Sequence[str], copies: int
) -> Iterator[Span]:
    """Yield the transfers of the first worker, from launch until the end was known."""
    names = [tensor.name for tensor in job.tensors]
    sizes = [tensor.bytes for tensor in job.tensors]
    zero = _zero(log)
    sub_tasks = pieces.sub_tasks()
    labels = [label(parts, names, sizes) for parts in sub_tasks]
    layers = [tuple(sorted({job.tensors[p.tensor].needed_by for p in ps})) for ps in sub_tasks]
    carried = pieces.operation_bytes
    for number, stage in enumerate(stages):
        first = number * copies * len(labels)
        for piece, text in enumerate(labels):
            name = text if len(stages) == 1 else f"{stage} {text}"
            for row in range(log.launched.shape[0]):
                start = log.launched[row, first + piece] - zero
                end = log.known[row, first + piece] - zero
                if not np.isnan(start):
                    times, size = (float(start), float(end)), int(carried[piece])
                    yield Span("transfer", name, *times, row, size, layers[piece], piece)


def link_use(pieces: Pieces, log: Moments, shares: LinkShares, copies: int) -> Iterator[Carried]:
    """Yield what the first worker's link carried."""
    size = pieces.operation_bytes
    zero, (ups, downs) = _zero(log), shares
    for stage, (up, down) in enumerate(zip(ups, downs, strict=True)):
        own = slice(stage * copies * size.size, (stage * copies + 1) * size.size)
        for begins, ends in zip(log.sending[:, own] - zero, log.sent[:, own] - zero, strict=True):
            rows = zip(begins.tolist(), ends.tolist(), size.tolist(), strict=True)
            yield from (Carried(s, e, up * b, down * b) for s, e, b in rows if not isnan(s))


def link_shares(schedule: Policy | Plan, cluster: Cluster) -> LinkShares:
    """Return for each stage the bytes that a worker's link sends and receives, per payload byte."""
    uses = [cluster.use_of(stage.collective) for stage in schedule.stages]
    return [use.up for use in uses], [use.down for use in uses]


def _zero(log: Moments) -> float:
    """Time zero is where the first of the kept iterations begins."""
    return float(log.iteration_start[0, -1 - log.step_start.shape[0]])


def steps(job: Job) -> Iterator[tuple[Kind, str, tuple[int, ...]]]:
    """Yield a worker's steps in order: the kind, the layer's name and its number."""
    for number, layer in enumerate(job.layers):
        yield "update", layer.name, (number,)
        yield "forward", layer.name, (number,)
    for number in reversed(range(len(job.layers))):
        yield "backward", job.layers[number].name, (number,)
    yield "outside", "the model", ()
