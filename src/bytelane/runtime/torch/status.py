"""How training is going, in numbers."""

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
    """How many are launched for one backward pass."""
    waits_for_all: bool
    """Whether every step waits for all tensors."""
    iteration_s: float | None
    """Median of the last iterations; None before there are two."""
    compute_s: float | None
    """What an iteration takes without communication, as measured; None before that."""
    link_busy_s: float | None
    """For how long of the last whole iteration something was being sent."""
    owed_tensors: int
    """How many tensors still wait for the update of the last step."""
    failure: str
    """Why training has ended; empty if it has not."""
