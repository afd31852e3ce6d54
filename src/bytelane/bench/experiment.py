"""What is run, and what came out; both travel between processes as JSON."""

import msgspec

from bytelane.cluster import Link
from bytelane.core import Knobs
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim import make_planner
from bytelane.trace import Trace

# Gradients are whole numbers, and dividing by these world sizes keeps every sum exact.
WORLD_SIZES = (2, 4, 8)


class Contender(msgspec.Struct, frozen=True):
    """A policy with its knobs."""

    policy: str
    knobs: Knobs

    def __post_init__(self) -> None:
        make_planner(self.policy, self.knobs)  # refuses what only a simulator can do


class Experiment(msgspec.Struct, frozen=True):
    """One job on local ranks, once under every contender."""

    job: Job
    workers: int
    rate: float
    """Bytes per second of each connection."""
    contenders: tuple[Contender, ...]
    iterations: int

    def __post_init__(self) -> None:
        if self.workers not in WORLD_SIZES:
            sizes = ", ".join(map(str, WORLD_SIZES))
            raise InputError(f"{self.workers} workers: an exact check needs one of {sizes}")
        for tensor in self.job.tensors:
            if tensor.bytes % 4:
                raise InputError(
                    f"tensor {tensor.name!r}: {tensor.bytes} bytes are not whole floats"
                )
        if self.iterations < 4:
            raise InputError(f"{self.iterations} iterations are too few to compare; use 4 or more")


class Outcome(msgspec.Struct, frozen=True):
    """One contender, predicted and real."""

    contender: Contender
    link: Link
    """As measured on this network just before."""
    predicted_s: float
    real_s: float
    """Median over the iterations that were not used to measure the job."""
    real_spread_s: float
    """Between the quartiles."""
    compute_s: float
    communication_s: float
    weights_exact: bool
    """Whether every weight is what exact arithmetic says."""
    predicted: Trace
    real: Trace

    @property
    def error(self) -> float:
        """How much longer it really took, as a fraction of the prediction."""
        return self.real_s / self.predicted_s - 1

    @property
    def bound_s(self) -> float:
        return max(self.compute_s, self.communication_s)
