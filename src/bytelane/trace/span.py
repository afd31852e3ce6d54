"""Spans: when computing and transfers ran, in the simulator or in training."""

from typing import Literal, TypeVar

import msgspec

Kind = Literal["forward", "backward", "update", "outside", "transfer"]


class Span(msgspec.Struct, frozen=True):
    """A step of computing or a transfer, with its start and end."""

    kind: Kind
    name: str
    start_s: float
    end_s: float
    iteration: int
    bytes: int = 0
    """Transfers only."""
    layers: tuple[int, ...] = ()
    """The layers that it computes; for a transfer, the layers that use its tensors first. In one
    trace a number always means the same layer."""
    operation: int = -1
    """Transfers only: a push and the pull of the same pieces are stages of one operation."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class Carried(msgspec.Struct, frozen=True):
    """The bytes that a worker's link carried in an interval, at an even rate."""

    start_s: float
    end_s: float
    out_bytes: float
    in_bytes: float


T = TypeVar("T", Span, Carried)


class Trace(msgspec.Struct, frozen=True):
    """The spans of one worker, on a clock that all of them share."""

    source: str
    """Whose trace it is: ``simulator``, ``rank 0``..."""
    spans: tuple[Span, ...]
    iteration_start_s: dict[int, float]
    """When the forward pass of each iteration began."""
    link: tuple[Carried, ...] = ()
    """What was on the worker's link, where that is known; parts of one message add up."""

    def iteration_s(self, iteration: int) -> float | None:
        """Forward start to the next forward start; None if the next one was not seen."""
        end = self.iteration_start_s.get(iteration + 1)
        return None if end is None else end - self.iteration_start_s[iteration]

    def from_iteration(self, first: int, count: int = 1) -> "Trace":
        """Keep the spans of these iterations; time zero is where they begin."""
        zero = self.iteration_start_s[first]
        end = self.iteration_start_s.get(first + count, float("inf"))
        starts = {
            k: start - zero
            for k, start in self.iteration_start_s.items()
            if first <= k <= first + count
        }
        spans, link = _during(self.spans, zero, end), _during(self.link, zero, end)
        return Trace(self.source, spans, starts, link)


def _during(all_of_them: tuple[T, ...], zero: float, end: float) -> tuple[T, ...]:
    return tuple(
        msgspec.structs.replace(one, start_s=one.start_s - zero, end_s=one.end_s - zero)
        for one in all_of_them
        if one.end_s > zero and one.start_s < end
    )
