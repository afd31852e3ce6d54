"""Record and replay the events of one rank's scheduler, as JSON lines.

A line with a plan holds for the rounds after it; a line with a round has its events and the
launched operations: enough to step the core through them again. A run that is killed may leave an
incomplete last line, which is left out when the file is read.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from bytelane.core import Event, Plan, Scheduler, Start
from bytelane.errors import IllegalEvent, InputError
from bytelane.files import open_regular
from bytelane.terminal import announce
from bytelane.units import format_bytes

# One line per round; a day of training has some hundred thousand rounds.
LONGEST_LINE = 64 * 2**20
LARGEST_RECORDING = 16 * 2**30


class PlanLine(msgspec.Struct, frozen=True, tag="plan"):
    """From here on this plan is in force."""

    plan: Plan
    tensor_names: tuple[str, ...]


class RoundLine(msgspec.Struct, frozen=True, tag="round"):
    """All tensors were summed once."""

    step: int
    number: int
    """Of the round, within the step."""
    events: tuple[Event, ...]
    """Seconds of a clock with any zero, the kind of event, and the tensor or operation."""
    launched: tuple[int, ...]


class Recorder:
    """Writes one rank's recording, a line at a time.

    A write error ends the recording, not the training.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] | None = path.open("wb")
        except OSError as error:
            raise InputError(
                f"{path} cannot be written: {error.strerror}; give trace another file"
            ) from None

    def write(self, line: PlanLine | RoundLine) -> None:
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            self.close()
            announce(
                f"the trace {self._path} ends here ({error.strerror}); training goes on without it"
            )

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # closing repeats a write that failed before
                self._file.close()
            self._file = None


class Replayed(NamedTuple):
    """A round that was stepped through the core again."""

    line: RoundLine
    plan: PlanLine
    difference: str
    """Where the core decides differently now; empty if nowhere."""

    @property
    def seconds(self) -> float:
        """From the first event to the last."""
        return self.line.events[-1].now - self.line.events[0].now if self.line.events else 0.0


def replay(path: Path) -> Iterator[Replayed]:
    """Step the core through every round of a recording."""
    plan: PlanLine | None = None
    rounds = 0
    for number, line in enumerate(read(path), start=1):
        if isinstance(line, PlanLine):
            plan = line
        elif plan is None:
            raise InputError(f"{path}: line {number} is a round, but no plan comes before it")
        else:
            rounds += 1
            yield Replayed(line, plan, _difference(line, plan))
    if not rounds:
        raise InputError(f"{path}: holds no round, so there is nothing to replay")


def read(path: Path) -> Iterator[PlanLine | RoundLine]:
    """Return the lines of a recording, without a last one that was cut off."""
    with open_regular(path, LARGEST_RECORDING) as file:
        lines = iter(lambda: file.readline(LONGEST_LINE + 1), b"")
        for number, text in enumerate(lines, start=1):
            if len(text) > LONGEST_LINE:
                most = format_bytes(LONGEST_LINE)
                raise InputError(f"{path}: line {number} has more than {most}, too many to be read")
            if text.endswith(b"\n"):
                yield _decode(text, f"{path} is not a recording: line {number}")


def _decode(text: bytes, complaint: str) -> PlanLine | RoundLine:
    try:
        return msgspec.json.decode(text, type=PlanLine | RoundLine)
    except (msgspec.DecodeError, ValueError, OverflowError) as error:  # or no text at all
        raise InputError(f"{complaint}: {error}") from None
    except RecursionError:
        raise InputError(f"{complaint}: it is nested too deeply") from None


def _difference(line: RoundLine, plan: PlanLine) -> str:
    scheduler = Scheduler.of_plan(plan.plan)
    launched: list[int] = []
    for event in line.events:
        try:
            launched += [start.operation for start in _tell(scheduler, event)]
        except IllegalEvent as error:
            return str(error)
    for ours, theirs in zip(launched, line.launched, strict=False):
        if ours != theirs:
            return f"launched {_name(theirs, plan)}, where the core says {_name(ours, plan)}"
    if len(launched) != len(line.launched):
        return f"launched {len(line.launched)} operations, where the core says {len(launched)}"
    return ""


def _tell(scheduler: Scheduler, event: Event) -> list[Start]:
    if event.kind == "ready":
        return scheduler.notify_ready(event.which, event.now)
    return scheduler.notify_finish(event.which, event.now)


def _name(operation: int, plan: PlanLine) -> str:
    if not 0 <= operation < len(plan.plan.operations) * len(plan.plan.stages):
        return f"{operation} (which the plan does not have)"
    return f"{operation} ({plan.plan.describe(operation, plan.tensor_names)})"
