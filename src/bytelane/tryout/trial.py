"""What is tried, and what came out; both travel between processes as JSON."""

from statistics import median
from typing import Any, Literal

import msgspec

from bytelane.errors import InputError
from bytelane.units import format_bytes
from bytelane.values import require_whole

Way = Literal["ddp", "bytelane", "compute", "communication"]

NAMES: dict[Way, str] = {
    "ddp": "DDP",
    "bytelane": "Bytelane",
    "compute": "compute alone",
    "communication": "communication alone",
}
# Half of them warm up: DDP builds its buckets anew, and Bytelane measures and plans.
LEAST_ITERATIONS = 12
MOST_ITERATIONS, MOST_REPETITIONS = 1_000_000, 1000
# Above this the machine was not quiet enough for the figure to be believed.
QUIET_SPREAD = 0.03


class Arm(msgspec.Struct, frozen=True):
    """One way in which the same iterations are run."""

    way: Way
    bucket_bytes: int | None = None
    """For DDP, instead of what the script asks for."""
    whole_graphs: bool = False
    """For DDP: compiled graphs are not split at its buckets, which would change their kernels."""

    def __post_init__(self) -> None:
        if self.bucket_bytes is not None and self.bucket_bytes < 1:
            raise InputError(f"a bucket of {self.bucket_bytes} bytes holds nothing; use 1 or more")

    @property
    def name(self) -> str:
        buckets = f", {format_bytes(self.bucket_bytes)} buckets" if self.bucket_bytes else ""
        graphs = ", compiled graphs not split" if self.whole_graphs else ""
        return NAMES[self.way] + buckets + graphs

    @property
    def is_ddp(self) -> bool:
        return self.way == "ddp"


DDP, BYTELANE, COMPUTE, COMMUNICATION = map(Arm, NAMES)
# Its times do not count: DDP splits graphs to be faster.
WHOLE_GRAPHS = Arm("ddp", whole_graphs=True)


class Trial(msgspec.Struct, frozen=True):
    """A script, and how long and how often it is run in every way."""

    script: str
    arguments: tuple[str, ...] = ()
    iterations: int = 40
    """After so many steps of the optimizer a run is ended."""
    repetitions: int = 3
    buckets: tuple[int, ...] = ()
    """Run DDP with buckets of these sizes too."""
    knobs: dict[str, Any] = {}
    """What ``bytelane.prepare`` is given beside model and optimizer."""
    timeout_s: float = 300.0
    """A run that makes no step for so long is ended."""

    def __post_init__(self) -> None:
        if self.iterations < LEAST_ITERATIONS:
            raise InputError(
                f"{self.iterations} iterations are too few, since half of them warm up; "
                f"use {LEAST_ITERATIONS} or more"
            )
        if self.repetitions < 1:
            raise InputError(f"{self.repetitions} repetitions are too few; use 1 or more")
        require_whole(self.iterations, "iterations", LEAST_ITERATIONS, MOST_ITERATIONS)
        require_whole(self.repetitions, "repetitions", 1, MOST_REPETITIONS)
        if not self.timeout_s > 0:
            raise InputError(f"a timeout of {self.timeout_s:g} s leaves no time; use more than 0")
        if len(set(self.buckets)) < len(self.buckets):
            raise InputError("a bucket size is named twice")

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Return all ways to run; DDP as it is comes first, since it shows whether all is well."""
        rivals = (Arm("ddp", size) for size in self.buckets)
        return DDP, *rivals, BYTELANE, COMPUTE, COMMUNICATION

    def rounds(self) -> list[list[Arm]]:
        """Return the order of all runs: to and fro, so that a slow drift hits all alike."""
        return [list(self.arms[:: -1 if k % 2 else 1]) for k in range(self.repetitions)]


class Errand(msgspec.Struct, frozen=True):
    """What the ranks of one run are told."""

    trial: Trial
    arm: Arm
    gradient_bytes: int = 0
    """How much is to be sent, where only that is done."""


class Line(msgspec.Struct, frozen=True):
    """A line of a program."""

    file: str
    number: int
    text: str


class Wrapped(msgspec.Struct, frozen=True):
    """Where a model is wrapped, and where the optimizers that step it are made."""

    at: Line
    optimizers: tuple[Line, ...] = ()


class RankReport(msgspec.Struct, frozen=True):
    """What one rank says of its run."""

    rank: int
    world: int
    code: int = 0
    """With what the script has ended."""
    refused: str = ""
    """Why Bytelane would not train it."""
    steps: int = 0
    times_s: tuple[float, ...] = ()
    """Of the iterations that count."""
    wrapped: tuple[Wrapped, ...] = ()
    gradient_bytes: int = 0
    digest: str = ""
    """Of all parameters at the end."""
    splits_graphs: bool = False
    """Whether code was compiled that DDP splits at its buckets."""
    has_gates_in_graphs: bool = False
    """Whether code was compiled that Bytelane's gates split."""


class Difference(msgspec.Struct, frozen=True):
    """How far two sets of weights are apart."""

    largest: float = 0.0
    name: str = ""
    """Of the tensor in which that is; empty if all are equal to the last bit."""


class Cell(msgspec.Struct, frozen=True):
    """The times of one way."""

    arm: Arm
    times_s: tuple[tuple[float, ...], ...]
    """Repetition -> steady iterations, of the slowest rank."""

    @property
    def repetitions_s(self) -> list[float]:
        return [median(times) for times in self.times_s]

    @property
    def iteration_s(self) -> float:
        """The median over the repetitions of the median over their iterations."""
        return median(self.repetitions_s)

    @property
    def spread(self) -> float:
        """Slowest to fastest repetition, as a fraction of the median."""
        return (max(self.repetitions_s) - min(self.repetitions_s)) / self.iteration_s

    @property
    def is_quiet(self) -> bool:
        return self.spread <= QUIET_SPREAD


class Outcome(msgspec.Struct, frozen=True):
    """What a trial has shown."""

    trial: Trial
    workers: int
    cells: tuple[Cell, ...]
    steps: int
    gradient_bytes: int
    wrapped: tuple[Wrapped, ...]
    weights: Difference | None
    """Between DDP and Bytelane at the end."""
    not_compared: str
    """Why that is None."""
    own: Difference | None
    """Between one run under DDP and another; None where there was but one."""
    ranks_agree: bool
    """Whether ranks end with the same parameters under Bytelane, as they do under DDP."""
    said: tuple[str, ...] = ()
    """What Bytelane has told meanwhile."""
    rival: Arm = DDP
    """Whose weights are compared with Bytelane's."""
    has_same_kernels: bool = True
    """Whether that one has compiled the same graphs."""

    @property
    def is_deterministic(self) -> bool | None:
        """Whether the script does the same twice; None if that was not tried."""
        return None if self.own is None else not self.own.largest

    @property
    def is_wrong(self) -> bool:
        """Whether Bytelane has trained something else, beyond doubt."""
        # On more than two workers another order of summing is another rounding.
        exact = self.workers == 2 and self.is_deterministic and self.has_same_kernels
        return not self.ranks_agree or bool(exact and self.weights and self.weights.largest)

    def seconds(self, arm: Arm) -> float:
        return self.cell(arm).iteration_s

    def cell(self, arm: Arm) -> Cell:
        return next(cell for cell in self.cells if cell.arm == arm)

    @property
    def bound_s(self) -> float:
        """No schedule is faster than computing alone or communication alone."""
        return max(self.seconds(COMPUTE), self.seconds(COMMUNICATION))

    @property
    def best_ddp(self) -> Cell:
        return min((c for c in self.cells if c.arm.is_ddp), key=lambda cell: cell.iteration_s)

    @property
    def speedup(self) -> float:
        """How many times as fast as the best DDP that ran."""
        return self.best_ddp.iteration_s / self.seconds(BYTELANE)

    @property
    def is_clear(self) -> bool:
        """Whether every repetition of the faster one beats every one of the slower."""
        ours, theirs = self.cell(BYTELANE).repetitions_s, self.best_ddp.repetitions_s
        return max(ours) < min(theirs) or max(theirs) < min(ours)
