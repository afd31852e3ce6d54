"""Benchmark a job under DDP, FSDP2 and Bytelane, in one lab, beside its prediction."""

from bytelane.bench.cell import Cell, Overlay
from bytelane.bench.contender import (
    BUCKETS,
    CommunicationOnly,
    ComputeOnly,
    Contender,
    Ddp,
    Fsdp,
    Ours,
    everyone,
    real_policies,
)
from bytelane.bench.experiment import Conditions, Experiment, Result
from bytelane.bench.launch import run_experiment
from bytelane.bench.scale import scale_bytes, scale_compute

__all__ = [
    "BUCKETS",
    "Cell",
    "CommunicationOnly",
    "ComputeOnly",
    "Conditions",
    "Contender",
    "Ddp",
    "Experiment",
    "Fsdp",
    "Ours",
    "Overlay",
    "Result",
    "everyone",
    "real_policies",
    "run_experiment",
    "scale_bytes",
    "scale_compute",
]
