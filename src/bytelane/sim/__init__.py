"""Virtual time: what would happen."""

from bytelane.sim.engine import Simulation, simulate
from bytelane.sim.layout import Jitter
from bytelane.sim.planner import make_planner
from bytelane.sim.quick import evaluate, evaluate_each

__all__ = ["Jitter", "Simulation", "evaluate", "evaluate_each", "make_planner", "simulate"]
