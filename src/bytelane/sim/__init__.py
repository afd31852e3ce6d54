"""Virtual time: what would happen."""

from bytelane.sim.engine import Simulation, simulate
from bytelane.sim.planner import make_planner

__all__ = ["Simulation", "make_planner", "simulate"]
