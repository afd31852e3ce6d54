"""The settings of a benchmark and its results; both travel between processes as JSON."""

import msgspec

from bytelane.bench.cell import Cell
from bytelane.bench.contender import AUTO, CommunicationOnly, ComputeOnly, Contender, Ours
from bytelane.cluster import Link
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.values import require_whole, shown

# Gradients are whole numbers, and dividing by these world sizes keeps every sum exact.
WORLD_SIZES = (2, 4, 8)
REAL_MODELS = ("cnn", "gpt")
LEAST_ITERATIONS = 3
MOST_ITERATIONS, MOST_REPETITIONS = 100_000, 1000
# The line that rank 0 prints when the links may drop, and the file that exists when they have.
ALL_ARE_WARM = "all contenders are warm: the links drop"
LINKS_HAVE_DROPPED = "links-have-dropped"


class Conditions(msgspec.Struct, frozen=True):
    """Jitter and a slow rank, in emulated computing."""

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
    """A job, which is emulated, or the name of a real model."""
    workers: int
    contenders: tuple[Contender, ...]
    iterations: int = 6
    repetitions: int = 3
    ratio: float | None = None
    """Computing time as a multiple of the measured communication time."""
    conditions: Conditions = Conditions()
    drop: float = 0.0
    """Fraction of their rate that links lose once all contenders are warm and have planned."""

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


class Result(msgspec.Struct, frozen=True):
    """All cells of one run, with the job and the links."""

    job: Job
    """As it was run: scaled to the ratio, or measured."""
    workers: int
    link: Link
    """As measured between the ranks, by plain all-reduces."""
    our_link: Link
    """As measured through our own engine, whose work is a part of the cost of a message."""
    cells: tuple[Cell[Contender], ...]
    mutation_found: bool
    """Whether the check of the weights noticed a piece that was shifted by one element."""

    def cell(self, kind: type[Contender]) -> Cell[Contender] | None:
        """Return the first cell of a kind that has run."""
        return next((c for c in self.cells if isinstance(c.contender, kind) and c.times_s), None)

    @property
    def bound_s(self) -> float | None:
        """No schedule is faster than computing alone or communication alone."""
        alone = [self.cell(kind) for kind in (ComputeOnly, CommunicationOnly)]
        times = [cell.iteration_s for cell in alone if cell is not None]
        return max(times) if len(times) == len(alone) else None
