"""The settings of ``bytelane try`` and its results; both travel between processes as JSON."""

from typing import Any, Literal

import msgspec

from bytelane.bench.cell import Cell
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
# Half of them are the warm-up: DDP rebuilds its buckets, and Bytelane measures and plans.
LEAST_ITERATIONS = 12
MOST_ITERATIONS, MOST_REPETITIONS = 1_000_000, 1000


class Arm(msgspec.Struct, frozen=True):
    """One way in which the same iterations are run."""

    way: Way
    bucket_bytes: int | None = None
    """For DDP, instead of the script's bucket size."""
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
    """Optimizer steps per run."""
    repetitions: int = 3
    buckets: tuple[int, ...] = ()
    """Run DDP with buckets of these sizes too."""
    knobs: dict[str, Any] = {}
    """Further arguments of ``bytelane.prepare``."""
    timeout_s: float = 300.0
    """Time without a step after which a run is ended."""

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
        """Return all arms; plain DDP comes first, since it shows whether the script works."""
        rivals = (Arm("ddp", size) for size in self.buckets)
        return DDP, *rivals, BYTELANE, COMPUTE, COMMUNICATION

    def rounds(self) -> list[list[Arm]]:
        """Return the order of all runs: forwards, then backwards, so that a drift hits all arms."""
        return [list(self.arms[:: -1 if k % 2 else 1]) for k in range(self.repetitions)]


class Errand(msgspec.Struct, frozen=True):
    """The input of the ranks of one run."""

    trial: Trial
    arm: Arm
    gradient_bytes: int = 0
    """Bytes to send, for the arm that only communicates."""


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
    """The result of one rank."""

    rank: int
    world: int
    code: int = 0
    """The script's exit code."""
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
    """Of the tensor with the largest difference; empty if all are equal to the last bit."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of a trial."""

    trial: Trial
    workers: int
    cells: tuple[Cell[Arm], ...]
    steps: int
    gradient_bytes: int
    wrapped: tuple[Wrapped, ...]
    weights: Difference | None
    """Between DDP and Bytelane at the end."""
    not_compared: str
    """Why ``weights`` is None."""
    own: Difference | None
    """Between two runs under DDP; None if there was only one."""
    ranks_agree: bool
    """Whether ranks end with the same parameters under Bytelane, as they do under DDP."""
    said: tuple[str, ...] = ()
    """Lines that Bytelane printed during the run."""
    rival: Arm = DDP
    """The arm of DDP whose weights are compared with Bytelane's."""
    has_same_kernels: bool = True
    """Whether ``rival`` has compiled the same graphs."""

    @property
    def is_deterministic(self) -> bool | None:
        """Whether two runs under DDP end with equal weights; None if there was only one."""
        return None if self.own is None else not self.own.largest

    @property
    def is_wrong(self) -> bool:
        """Whether the weights under Bytelane are certainly wrong."""
        # On more than two workers another order of summing is another rounding.
        exact = self.workers == 2 and self.is_deterministic and self.has_same_kernels
        return not self.ranks_agree or bool(exact and self.weights and self.weights.largest)

    def seconds(self, arm: Arm) -> float:
        return self.cell(arm).iteration_s

    def cell(self, arm: Arm) -> Cell[Arm]:
        return next(cell for cell in self.cells if cell.contender == arm)

    @property
    def bound_s(self) -> float:
        """No schedule is faster than computing alone or communication alone."""
        return max(self.seconds(COMPUTE), self.seconds(COMMUNICATION))

    @property
    def best_ddp(self) -> Cell[Arm]:
        return min((c for c in self.cells if c.contender.is_ddp), key=lambda cell: cell.iteration_s)

    @property
    def speedup(self) -> float:
        """Speed as a multiple of that of the best DDP that ran."""
        return self.best_ddp.iteration_s / self.seconds(BYTELANE)

    @property
    def is_clear(self) -> bool:
        """Whether every repetition of the faster arm beats every one of the slower."""
        ours, theirs = self.cell(BYTELANE).repetitions_s, self.best_ddp.repetitions_s
        return max(ours) < min(theirs) or max(theirs) < min(ours)
