"""The critical path of an iteration: walk back from its end, each time to the cause of a wait.

Moments in the log that belong together are the same float, so causes are found by equality. Each
link of the chain is computing, handling or sending a message, or waiting for its end to be known.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np

from bytelane.core import label
from bytelane.errors import InputError
from bytelane.sim.engine import Simulation
from bytelane.sim.layout import Moments
from bytelane.sim.spans import steps


class Cause(NamedTuple):
    """One step of the critical path: computing, handling, sending or latency."""

    what: str
    """forward, backward, update, outside, handling, sending or latency."""
    name: str
    start_s: float
    end_s: float
    worker: int = 0

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class _Transfer(NamedTuple):
    name: str
    launched: float
    handling: float
    handled: float
    sending: float
    sent: float
    known: float

    @property
    def over(self) -> float:
        return max(self.handled, self.sent)


class _Awaited(NamedTuple):
    """The cause of a wait: until a transfer was handled, sent, over, or known to be over."""

    transfer: _Transfer
    what: Literal["handled", "sent", "over", "known"]


def critical_path(found: Simulation) -> list[Cause]:
    """Return the causes of an iteration's length, without gaps, from its start to its end."""
    if found.log is None:
        raise InputError("the optimum is a bound, not a schedule: it has no critical path")
    # Not the last one: the log does not have the update that leads to its end.
    zero, end = (float(moment) for moment in found.log.iteration_start[0, -3:-1])
    path = []
    for cause in _Walk(found, found.log).back_from(end):
        path.append(
            cause._replace(start_s=max(cause.start_s, zero) - zero, end_s=cause.end_s - zero)
        )
        if cause.start_s <= zero:
            break
    return path[::-1]


def explain(path: list[Cause], lines: int = 5) -> list[Cause]:
    """Join neighbours of a kind, then the shortest pairs, until at most ``lines`` are left."""
    joined = [_join(list(same)) for _, same in groupby(path, key=lambda cause: cause.what)]
    while len(joined) > lines:
        pairs = range(len(joined) - 1)
        k = min(pairs, key=lambda i: joined[i].seconds + joined[i + 1].seconds)
        joined[k : k + 2] = [_join(joined[k : k + 2])]
    return joined


def _join(causes: list[Cause]) -> Cause:
    longest = max(causes, key=lambda cause: cause.seconds)
    others = len({cause.name for cause in causes}) - 1
    name = longest.name.partition(" and ")[0] + (f" and {others} more" if others else "")
    kinds = list(dict.fromkeys(kind for cause in causes for kind in cause.what.split(" + ")))
    return Cause(" + ".join(kinds), name, causes[0].start_s, causes[-1].end_s, longest.worker)


class _Walk:
    """The log, indexed by the moments at which steps and transfers end."""

    def __init__(self, found: Simulation, log: Moments) -> None:
        self._steps: dict[float, list[Cause]] = defaultdict(list)
        self._handled: dict[float, _Transfer] = {}
        self._sent: dict[float, _Transfer] = {}
        self._over: dict[float, _Transfer] = {}
        self._known: dict[float, _Transfer] = {}
        names = [(kind, name) for kind, name, _ in steps(found.job)]
        for row, worker, step in np.argwhere(log.step_end > log.step_start).tolist():
            start, end = log.step_start[row, worker, step], log.step_end[row, worker, step]
            self._steps[float(end)].append(Cause(*names[step], float(start), float(end), worker))
        for transfer in _transfers(found, log):
            self._handled[transfer.handled] = transfer
            self._sent[transfer.sent] = transfer
            self._over[transfer.over] = transfer
            self._known[transfer.known] = transfer

    def back_from(self, moment: float) -> Iterator[Cause]:
        """Yield causes from the start of a forward pass back to the beginning of the log."""
        cause = self._before_computing(moment, worker=0)
        while cause is not None:
            if isinstance(cause, Cause):
                yield cause
                cause = self._before_computing(cause.start_s, cause.worker)
            else:
                yield from self._stages(cause)
                cause = self._before(*_last_stage(cause))

    def _stages(self, awaited: _Awaited) -> Iterator[Cause]:
        """Yield the last phases of a transfer, back to the start of its handling or sending."""
        transfer, what = awaited
        if what == "known" and transfer.known > transfer.over:
            yield Cause("latency", transfer.name, transfer.over, transfer.known)
        if _last_stage(awaited).what == "handled":
            yield Cause("handling", transfer.name, transfer.handling, transfer.handled)
        else:
            yield Cause("sending", transfer.name, transfer.sending, transfer.sent)

    def _before_computing(self, moment: float, worker: int) -> "_Found":
        """Computing begins when the step before is over, or when a transfer is known to be."""
        for step in self._steps.get(moment, []):
            if step.worker == worker:
                return step
        return self._known_at(moment)

    def _before(self, transfer: _Transfer, what: str) -> "_Found":
        """Handling and sending begin when the message before has been handled, or sent.

        Both also wait until the one before that is over, the gradient ready, and the window open.
        """
        began, same = transfer.sending, self._sent
        if what == "handled":
            began, same = transfer.handling, self._handled
        if transfer.launched < began:
            if began in same:
                return _Awaited(same[began], "handled" if what == "handled" else "sent")
            return _Awaited(self._over[began], "over") if began in self._over else None
        for step in self._steps.get(transfer.launched, []):
            if step.what == "backward":
                return step
        return self._known_at(transfer.launched)

    def _known_at(self, moment: float) -> "_Found":
        return _Awaited(self._known[moment], "known") if moment in self._known else None


_Found = Cause | _Awaited | None


def _last_stage(awaited: _Awaited) -> _Awaited:
    """Tell whether a transfer was over because it had been handled, or because it had been sent."""
    transfer, what = awaited
    if what in ("over", "known"):
        return _Awaited(transfer, "handled" if transfer.handled > transfer.sent else "sent")
    return awaited


def _transfers(found: Simulation, log: Moments) -> Iterator[_Transfer]:
    names = [tensor.name for tensor in found.job.tensors]
    sizes = [tensor.bytes for tensor in found.job.tensors]
    labels = [label(parts, names, sizes) for parts in found.pieces.sub_tasks()]
    for row, operation in np.argwhere(~np.isnan(log.launched)).tolist():
        times = (log.launched, log.handling, log.handled, log.sending, log.sent, log.known)
        yield _Transfer(labels[operation % len(labels)], *(float(t[row, operation]) for t in times))
