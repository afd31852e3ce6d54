"""Turn the simulator's log into spans."""

from collections.abc import Iterator, Sequence

import numpy as np

from bytelane.core import Pieces, label
from bytelane.job import Job
from bytelane.sim.kernel import Log
from bytelane.trace import Kind, Span


def compute_spans(job: Job, log: Log, worker: int = 0) -> Iterator[Span]:
    """Tell what one worker computed in the iterations that were kept."""
    zero = _zero(log)
    for row in range(log.step_start.shape[0]):
        starts, ends = log.step_start[row, worker] - zero, log.step_end[row, worker] - zero
        for (kind, name), start, end in zip(step_names(job), starts, ends, strict=True):
            if end > start:
                yield Span(kind, name, float(start), float(end), row)


def transfer_spans(
    job: Job, pieces: Pieces, log: Log, stages: Sequence[str], copies: int
) -> Iterator[Span]:
    """Tell what was sent for the first worker, from launch until its end was known."""
    names = [tensor.name for tensor in job.tensors]
    sizes = [tensor.bytes for tensor in job.tensors]
    zero = _zero(log)
    labels = [label(parts, names, sizes) for parts in pieces.sub_tasks()]
    carried = np.bincount(pieces.operation, pieces.stop - pieces.start, len(labels)).astype(int)
    for number, stage in enumerate(stages):
        first = number * copies * len(labels)
        for piece, text in enumerate(labels):
            name = text if len(stages) == 1 else f"{stage} {text}"
            for row in range(log.launched.shape[0]):
                start = log.launched[row, first + piece] - zero
                end = log.known[row, first + piece] - zero
                if not np.isnan(start):
                    size = int(carried[piece])
                    yield Span("transfer", name, float(start), float(end), row, size)


def _zero(log: Log) -> float:
    """Time zero is where the first of the kept iterations begins."""
    return float(log.iteration_start[0, -1 - log.step_start.shape[0]])


def step_names(job: Job) -> Iterator[tuple[Kind, str]]:
    """Name a worker's steps in the order in which it takes them."""
    for layer in job.layers:
        yield "update", layer.name
        yield "forward", layer.name
    for layer in reversed(job.layers):
        yield "backward", layer.name
    yield "outside", "the model"
