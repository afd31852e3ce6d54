"""Runs that compare: the same job for real and in the simulator, on local ranks."""

from bytelane.bench.experiment import Contender, Experiment, Outcome
from bytelane.bench.launch import run_experiment

__all__ = ["Contender", "Experiment", "Outcome", "run_experiment"]
