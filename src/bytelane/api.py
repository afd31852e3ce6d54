"""The composition root: the only room that knows all others, and hands each what it needs."""

from pathlib import Path
from typing import TYPE_CHECKING

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, knobs_used, make_policy
from bytelane.errors import InputError, MissingExtra
from bytelane.job import Job, load
from bytelane.sim import Simulation, make_planner
from bytelane.sim import simulate as _simulate
from bytelane.units import parse_bytes, parse_rate, parse_seconds

if TYPE_CHECKING:
    import torch

# A window of two keeps the link busy while one ends, and lets urgent pieces overtake early.
PARTS_IN_FLIGHT = 2


def simulate(
    job: Job | str | Path,
    *,
    workers: int = 2,
    bandwidth: str = "10Gbit",
    policy: str = "bytescheduler",
    partition: str | int | None = None,
    credit: str | int | None = None,
    overhead: str = "0us",
    latency: str = "0us",
) -> Simulation:
    """Predict the steady state of a job (or a job file) that synchronises by all-reduce."""
    if not isinstance(job, Job):
        job = load(job)
    link = Link(parse_rate(bandwidth), parse_seconds(overhead), parse_seconds(latency))
    knobs = choose_knobs(policy, partition, credit)
    return _simulate(job, Cluster(workers, link), make_policy(policy, job, knobs))


def choose_knobs(policy: str, partition: str | int | None, credit: str | int | None) -> Knobs:
    """Fill in what was left open; refuse what would have no effect under this policy."""
    used = knobs_used(policy)
    for knob, given in (("partition", partition), ("credit", credit)):
        if given is not None and f"{knob}_bytes" not in used:
            raise InputError(f"{knob} has no effect under policy {policy}; leave it out")
    part = Knobs().partition_bytes if partition is None else parse_bytes(partition)
    window = PARTS_IN_FLIGHT * part if credit is None else parse_bytes(credit)
    return Knobs(partition_bytes=part, credit_bytes=window)


def prepare(
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer",
    *,
    policy: str = "bytescheduler",
    partition: str | int | None = None,
    credit: str | int | None = None,
    timeout_s: float = 1800.0,
) -> "tuple[torch.nn.Module, torch.optim.Optimizer]":
    """Make this model train in data parallel with the other ranks; return the same two objects.

    Call it after ``init_process_group`` and before the first forward pass, on every rank, instead
    of wrapping the model in DistributedDataParallel. The first three iterations are measured with
    plain buckets; then the policy's plan takes over.
    """
    try:
        from bytelane.runtime.torch import attach
    except ImportError:
        raise MissingExtra(
            "training needs PyTorch; install it with: pip install 'bytelane[torch]'"
        ) from None
    planner = make_planner(policy, choose_knobs(policy, partition, credit))
    attach(model, optimizer, planner, timeout_s=timeout_s)
    return model, optimizer
