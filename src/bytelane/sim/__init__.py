"""Virtual time: what would happen."""

from bytelane.sim.engine import Simulation, evaluate, simulate
from bytelane.sim.layout import Jitter
from bytelane.sim.planner import make_planner

__all__ = ["Jitter", "Simulation", "evaluate", "make_planner", "simulate"]
