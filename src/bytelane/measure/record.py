"""Record the marks of iterations: the start of each stage and call."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from bytelane.measure.attribution import Kind, Mark


class Clock(Protocol):
    """Takes moments, in a form of its own, and converts them to seconds later."""

    def moment(self) -> Any: ...

    def seconds(self, moments: Sequence[Any]) -> list[float]:
        """Turn moments into seconds since some common beginning."""
        ...


class Iteration(NamedTuple):
    """The marks, calls and gradients of one iteration; without hooks there are no calls."""

    marks: list[Mark]
    calls: tuple[str, ...]
    gradients: frozenset[str]
    """The parameters that got a gradient."""

    @property
    def seconds(self) -> float:
        return self.marks[-1].at_s - self.marks[0].at_s


class Recorder:
    """Keeps moments in the clock's form; converts them to seconds only at the end."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._finished: list[tuple[list[tuple[Kind, Any, int]], tuple[str, ...], set[str]]] = []
        self.begin()

    def begin(self) -> None:
        """Begin an iteration; drop an unfinished one."""
        self._marks: list[tuple[Kind, Any, int]] = []
        self.calls: list[str] = []
        self.gradients: set[str] = set()
        self.mark("other")

    def mark(self, kind: Kind, call: int = 0) -> None:
        self.mark_at(self.now(), kind, call)

    def mark_at(self, moment: Any, kind: Kind, call: int = 0) -> None:
        """Add a mark at an earlier moment, after which no other was marked."""
        self._marks.append((kind, moment, call))
        if kind not in ("gate", "done"):
            self.stage = kind

    def now(self) -> Any:
        return self.clock.moment()

    def end(self) -> None:
        """End the iteration."""
        self.mark("end")
        self._finished.append((self._marks, tuple(self.calls), self.gradients))

    def forget(self) -> None:
        """Drop the iterations so far, e.g. the warm-up."""
        self._finished.clear()

    def iterations(self) -> list[Iteration]:
        return [
            Iteration(self._timed(marks), calls, frozenset(gradients))
            for marks, calls, gradients in self._finished
        ]

    def _timed(self, marks: list[tuple[Kind, Any, int]]) -> list[Mark]:
        moments = self.clock.seconds([moment for _, moment, _ in marks])
        return [
            Mark(kind, at_s, call) for (kind, _, call), at_s in zip(marks, moments, strict=True)
        ]
