"""Profiler: time the layers and transfers of the user's own loop, as a trace and as a job.

A moment belongs to the module whose hook ran last: forward of a module lasts from the end of its
hook to the beginning of the next one, so that waiting is never counted as computing. Backward of a
module lasts from the gradient before to its own last gradient. Everything else is outside.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from bytelane.core import Plan, TransferTime
from bytelane.job import Job, Layer, Tensor
from bytelane.runtime.sync import Transfer
from bytelane.trace import Kind, Span, Trace

LAST_ITERATIONS = 4

# Kind, module, start and end: plain tuples, since there are several hundred per iteration, and
# hardly any is ever read.
_Lap = tuple[Kind, str, float, float]


class _Sent(NamedTuple):
    """The transfers of one round."""

    transfers: tuple[Transfer, ...]
    plan: Plan
    names: Sequence[str]
    owners: Sequence[Sequence[str]]
    iteration: int


class Profiler:
    """Spans of one rank; iterations are counted by steps of the optimizer."""

    def __init__(self, keep: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._keep = keep
        self._clock = clock
        self._laps: dict[int, list[_Lap]] = {0: []}
        self._sent: list[_Sent] = []
        self._starts: dict[int, float] = {}
        self._numbers: dict[str, int] = {}
        self._doing: tuple[Kind, str] | None = None
        self._since = 0.0
        self.iteration = 0

    def begin_iteration(self) -> None:
        """Begin the next iteration; forget the one that is too old to be kept."""
        self.stop()
        self.iteration += 1
        oldest = self.iteration - self._keep
        self._laps[self.iteration] = []
        self._laps.pop(oldest, None)
        self._sent = [sent for sent in self._sent if sent.iteration > oldest]
        self._starts = {k: start for k, start in self._starts.items() if k > oldest}

    def start(self, kind: Kind, name: str) -> None:
        """Begin a span of this kind and module; it ends the current one."""
        now = self._clock()
        if self._doing is not None:
            self._laps[self.iteration].append((*self._doing, self._since, now))
        self._doing = (kind, name)
        self._since = now
        if kind == "forward":
            self._starts.setdefault(self.iteration, now)

    def lap(self, kind: Kind, name: str) -> None:
        """End the current span as this kind and module; begin the next one, to be named later."""
        if self._doing is None:
            return self.start(kind, name)
        now = self._clock()
        self._laps[self.iteration].append((kind, name, self._since, now))
        self._since = now
        return None

    def stop(self, kind: Kind | None = None, name: str | None = None) -> None:
        """End the current span; the arguments correct its kind and module."""
        if self._doing is not None:
            began_as, whose = self._doing
            self._doing = None
            lap = kind or began_as, name or whose, self._since, self._clock()
            self._laps[self.iteration].append(lap)

    def add_transfers(
        self,
        transfers: Sequence[Transfer],
        plan: Plan,
        names: Sequence[str],
        owners: Sequence[Sequence[str]],
        iteration: int,
    ) -> None:
        """Keep the transfers of a round; their names are made only if a trace is asked for."""
        self._sent.append(_Sent(tuple(transfers), plan, names, owners, iteration))

    def _spans(self) -> Iterator[Span]:
        for iteration, laps in self._laps.items():
            for kind, name, start_s, end_s in laps:
                layers = (self._number(name),)
                yield Span(kind, name, start_s, end_s, iteration, layers=layers)

    def _transfer_spans(self) -> Iterator[Span]:
        for transfers, plan, names, owners, iteration in self._sent:
            for transfer in transfers:
                number = transfer.operation % len(plan.operations)
                operation = plan.operations[number]
                layers = {self._number(owners[part.tensor][0]) for part in operation.parts}
                yield Span(
                    "transfer",
                    plan.describe(transfer.operation, names),
                    transfer.launched_at,
                    transfer.finished_at,
                    iteration,
                    operation.bytes,
                    tuple(sorted(layers)),
                    number,
                )

    def _number(self, layer: str) -> int:
        return self._numbers.setdefault(layer, len(self._numbers))

    def trace(self, source: str) -> Trace:
        spans = [*self._spans(), *self._transfer_spans()]
        spans.sort(key=lambda span: span.start_s)
        return Trace(source, tuple(spans), dict(self._starts))

    def iteration_s(self, last: int = LAST_ITERATIONS) -> float | None:
        """Return the median of the last iterations, from forward to forward."""
        starts = sorted(self._starts.items())[-last - 1 :]
        times = [b - a for (k, a), (next_k, b) in pairwise(starts) if next_k == k + 1]
        return median(times) if times else None

    def link_busy_s(self) -> float | None:
        """Return how long transfers were in flight in the last iteration but one."""
        last = self.iteration - 2
        sent = [t for s in self._sent if s.iteration == last for t in s.transfers]
        if not sent:
            return None
        busy_s, until_s = 0.0, 0.0
        for transfer in sorted(sent, key=lambda transfer: transfer.launched_at):
            busy_s += max(0.0, transfer.finished_at - max(transfer.launched_at, until_s))
            until_s = max(until_s, transfer.finished_at)
        return busy_s

    def last_transfers(self) -> tuple[TransferTime, ...]:
        """Return the transfers of the last iteration but one."""
        last = self.iteration - 2
        return tuple(
            TransferTime(
                sent.plan.operations[t.operation % len(sent.plan.operations)].bytes,
                t.launched_at,
                t.finished_at,
            )
            for sent in self._sent
            if sent.iteration == last
            for t in sent.transfers
        )

    def layer_order(self, iteration: int) -> list[str]:
        """Return the modules in the order in which forward reached them."""
        laps = self._laps.get(iteration, [])
        return list(dict.fromkeys(name for kind, name, _, _ in laps if kind == "forward"))

    def seconds(self, kind: Kind, name: str | None, iterations: Sequence[int]) -> float:
        """Return the median over iterations of a module's time (of all of this kind, for None)."""
        return median(
            sum(
                end_s - start_s
                for what, whose, start_s, end_s in self._laps.get(k, [])
                if what == kind and (name is None or whose == name)
            )
            for k in iterations
        )


def durations(watch: Profiler, layers: Sequence[str], iterations: Sequence[int]) -> list[float]:
    """Return forward of each layer, then backward from the last to the first, update, outside."""
    forward = [watch.seconds("forward", name, iterations) for name in layers]
    backward = [watch.seconds("backward", name, iterations) for name in reversed(layers)]
    rest = [watch.seconds(kind, None, iterations) for kind in ("update", "outside")]
    return forward + backward + rest


def measured_job(
    name: str, layers: Sequence[str], tensors: Sequence[Tensor], durations_s: Sequence[float]
) -> Job:
    """Make a job of measured durations; the update is spread over the layers by their bytes."""
    count = len(layers)
    forward, backward = durations_s[:count], durations_s[2 * count - 1 : count - 1 : -1]
    update, outside = durations_s[2 * count :]
    total = sum(tensor.bytes for tensor in tensors)
    share = [0.0] * count
    for tensor in tensors:
        share[tensor.complete_after] += tensor.bytes / total
    return Job(
        name,
        tuple(
            Layer(*row)
            for row in zip(
                layers, forward, backward, (update * part for part in share), strict=True
            )
        ),
        tuple(tensors),
        outside,
    )
