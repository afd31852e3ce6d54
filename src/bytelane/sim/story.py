"""Turn the simulator's log into spans."""

from collections.abc import Iterator, Sequence

import numpy as np

from bytelane.core import Pieces, label
from bytelane.job import Job
from bytelane.sim.layout import Moments
from bytelane.trace import Kind, Span


def compute_spans(job: Job, log: Moments, worker: int = 0) -> Iterator[Span]:
    """Tell what one worker computed in the iterations that were kept."""
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
    """Tell what was sent for the first worker, from launch until its end was known."""
    names = [tensor.name for tensor in job.tensors]
    sizes = [tensor.bytes for tensor in job.tensors]
    zero = _zero(log)
    sub_tasks = pieces.sub_tasks()
    labels = [label(parts, names, sizes) for parts in sub_tasks]
    layers = [tuple(sorted({job.tensors[p.tensor].needed_by for p in ps})) for ps in sub_tasks]
    carried = np.bincount(pieces.operation, pieces.stop - pieces.start, len(labels)).astype(int)
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


def _zero(log: Moments) -> float:
    """Time zero is where the first of the kept iterations begins."""
    return float(log.iteration_start[0, -1 - log.step_start.shape[0]])


def steps(job: Job) -> Iterator[tuple[Kind, str, tuple[int, ...]]]:
    """Tell what a worker does, step by step: the kind, the layer's name and its number."""
    for number, layer in enumerate(job.layers):
        yield "update", layer.name, (number,)
        yield "forward", layer.name, (number,)
    for number in reversed(range(len(job.layers))):
        yield "backward", job.layers[number].name, (number,)
    yield "outside", "the model", ()
