"""Status of a prepared model: step, policy, times and failure, as numbers."""

import msgspec


class Status(msgspec.Struct, frozen=True):
    """One prepared model on one rank, at one moment."""

    rank: int
    workers: int
    step: int
    """How often the optimizer has stepped."""
    tensors: int
    gradient_bytes: int
    policy: str
    """``buckets`` until the job has been measured."""
    plan_version: int
    operations: int
    """Number of operations per backward pass."""
    waits_for_all: bool
    """Whether every step waits for all tensors."""
    iteration_s: float | None
    """Median of the last iterations; None before there are two."""
    compute_s: float | None
    """Measured time per iteration without communication; None before it is measured."""
    link_busy_s: float | None
    """How long transfers were in flight in the last whole iteration."""
    owed_tensors: int
    """How many tensors still wait for the update of the last step."""
    failure: str
    """Why training has ended; empty if it has not."""
