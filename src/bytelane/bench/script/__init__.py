"""Run an unedited training script under DDP, then under Bytelane."""

from bytelane.bench.script.contest import RunFailed, run_trial
from bytelane.bench.script.rank_launchers import Here, InLab, Place
from bytelane.bench.script.trial import Arm, Difference, Line, Outcome, Trial

__all__ = [
    "Arm",
    "Difference",
    "Here",
    "InLab",
    "Line",
    "Outcome",
    "Place",
    "RunFailed",
    "Trial",
    "run_trial",
]
