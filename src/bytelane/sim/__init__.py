"""Virtual time: what would happen."""

from bytelane.sim.engine import Jitter, Simulation, simulate
from bytelane.sim.planner import make_planner

__all__ = ["Jitter", "Simulation", "make_planner", "simulate"]
