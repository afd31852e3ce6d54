"""Virtual time: what would happen."""

from bytelane.sim.engine import Jitter, Simulation, evaluate, simulate
from bytelane.sim.planner import make_planner

__all__ = ["Jitter", "Simulation", "evaluate", "make_planner", "simulate"]
