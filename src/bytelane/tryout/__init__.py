"""Somebody else's training script, unedited: under DDP, then under Bytelane."""

from bytelane.tryout.launch import RunFailed, run_trial
from bytelane.tryout.places import Here, InLab, Place
from bytelane.tryout.trial import Arm, Cell, Difference, Line, Outcome, Trial

__all__ = [
    "Arm",
    "Cell",
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
