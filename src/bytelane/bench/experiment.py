"""What is run, and what came out; both travel between processes as JSON."""

from statistics import median

import msgspec

from bytelane.bench.contender import AUTO, CommunicationOnly, ComputeOnly, Contender, Ours
from bytelane.cluster import Link
from bytelane.core import Knobs
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.trace import Trace
from bytelane.values import require_whole, shown

# Gradients are whole numbers, and dividing by these world sizes keeps every sum exact.
WORLD_SIZES = (2, 4, 8)
REAL_MODELS = ("cnn", "gpt")
LEAST_ITERATIONS = 3
MOST_ITERATIONS, MOST_REPETITIONS = 100_000, 1000
# Above this the machine was not quiet enough for the figure to be believed.
QUIET_SPREAD = 0.03
# What the first rank says when the links may drop, and the file that tells that they have.
ALL_ARE_WARM = "everybody is warm: the links drop"
LINKS_HAVE_DROPPED = "links-have-dropped"


class Conditions(msgspec.Struct, frozen=True):
    """What makes computing less even than a sleep."""

    jitter: float = 0.0
    """Each layer's time is multiplied by exp(jitter * normal), by rank, iteration and layer."""
    slow_rank: float = 1.0
    """Rank 1's times are multiplied by this."""

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= 1:
            raise InputError(f"a jitter of {self.jitter} makes no sense; use 0 to 1, such as 0.1")
        if not 0.1 <= self.slow_rank <= 10:
            raise InputError(f"a rank slower by {self.slow_rank} makes no sense; use 0.1 to 10")

    def slow_rank_factor(self, rank: int) -> float:
        """Return how much longer this rank computes."""
        return self.slow_rank if rank == 1 else 1.0


class Experiment(msgspec.Struct, frozen=True):
    """One job or model on the ranks of a lab, under every contender in turn, several times over."""

    what: Job | str
    """A job is emulated; a name is that of a real model."""
    workers: int
    contenders: tuple[Contender, ...]
    iterations: int = 6
    repetitions: int = 3
    ratio: float | None = None
    """Scale the computing to this many times the measured communication."""
    conditions: Conditions = Conditions()
    drop: float = 0.0
    """Once everybody is warm, and has planned, the links lose this part of their rate."""

    def __post_init__(self) -> None:
        if self.workers not in WORLD_SIZES:
            sizes = ", ".join(map(str, WORLD_SIZES))
            raise InputError(f"{shown(self.workers)} workers: an exact check needs one of {sizes}")
        if isinstance(self.what, Job):
            _require_comparable(self.what)
        elif self.what not in REAL_MODELS and ":" not in self.what:
            raise InputError(
                f"{shown(self.what)} is neither one of {', '.join(REAL_MODELS)} nor "
                "package.module:function"
            )
        elif self.ratio is not None or self.conditions != Conditions():
            raise InputError("ratio, jitter and a slow rank have no effect on a real model")
        if self.iterations < LEAST_ITERATIONS:
            raise InputError(
                f"{self.iterations} iterations are too few; use {LEAST_ITERATIONS} or more"
            )
        if self.repetitions < 1:
            raise InputError(f"{self.repetitions} repetitions are too few; use 1 or more")
        require_whole(self.iterations, "iterations", LEAST_ITERATIONS, MOST_ITERATIONS)
        require_whole(self.repetitions, "repetitions", 1, MOST_REPETITIONS)
        if self.ratio is not None and not 0.01 <= self.ratio <= 100:
            raise InputError(f"a ratio of {self.ratio} makes no sense; use 0.01 to 100")
        if not 0 <= self.drop <= 0.9:
            raise InputError(f"links cannot drop by {self.drop}; use 0 to 0.9, such as 0.3")
        if len(set(self.contenders)) < len(self.contenders):
            raise InputError("a contender is named twice")
        auto, ablation = Ours(AUTO, None), Ours(AUTO, None, "as ready")
        if ablation in self.contenders[: (*self.contenders, auto).index(auto)]:
            raise InputError(f"{ablation.name}: {AUTO} itself must choose the pieces before")


def _require_comparable(job: Job) -> None:
    if not job.tensors:
        raise InputError(f"job {job.name!r} has no tensors, so there is nothing to compare")
    for tensor in job.tensors:
        if tensor.bytes % 4:
            raise InputError(f"tensor {tensor.name!r}: {tensor.bytes} bytes are not whole floats")


class Overlay(msgspec.Struct, frozen=True):
    """A typical iteration and the one after it, predicted and real."""

    predicted: Trace
    real: Trace


class Cell(msgspec.Struct, frozen=True):
    """What one contender did."""

    contender: Contender
    times_s: tuple[tuple[float, ...], ...] = ()
    """Repetition -> every iteration that counts."""
    exact: bool | None = None
    """Whether every weight is what it must be; None where nothing is synchronised."""
    predicted_s: float | None = None
    """What the simulator says of an iteration, from the job and the link as measured."""
    knobs: Knobs | None = None
    overlay: Overlay | None = None
    failure: str = ""
    """Why it could not run here."""

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


class Result(msgspec.Struct, frozen=True):
    """All cells of one run, and what they were measured on."""

    job: Job
    """As it was run: scaled to the ratio, or measured."""
    workers: int
    link: Link
    """As measured between the ranks, by plain all-reduces."""
    our_link: Link
    """As our own engine finds it, whose work is a part of what a message costs."""
    cells: tuple[Cell, ...]
    mutation_found: bool
    """Whether the check of the weights noticed a piece that was put one element too far."""

    def cell(self, kind: type[Contender]) -> Cell | None:
        """Return the first cell of a kind that has run."""
        return next((c for c in self.cells if isinstance(c.contender, kind) and c.times_s), None)

    @property
    def bound_s(self) -> float | None:
        """No schedule is faster than computing alone or communication alone."""
        alone = [self.cell(kind) for kind in (ComputeOnly, CommunicationOnly)]
        times = [cell.iteration_s for cell in alone if cell is not None]
        return max(times) if len(times) == len(alone) else None
