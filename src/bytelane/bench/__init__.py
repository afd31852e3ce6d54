"""Runs that compare: the same job under every contender, in one lab, beside its prediction."""

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
from bytelane.bench.experiment import Cell, Conditions, Experiment, Overlay, Result
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
