"""The simulator: iteration times and traces of a job on a cluster, in virtual time."""

from bytelane.sim.engine import Simulation, simulate
from bytelane.sim.evaluation import evaluate, evaluate_each
from bytelane.sim.layout import Jitter
from bytelane.sim.planner import ServerPlanner, make_planner

__all__ = [
    "Jitter",
    "ServerPlanner",
    "Simulation",
    "evaluate",
    "evaluate_each",
    "make_planner",
    "simulate",
]
