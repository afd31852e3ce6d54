"""Choose policies and knobs with the simulator: ``policy="auto"``, and planners for tuners."""

from bytelane.tune.auto import AutoPlanner
from bytelane.tune.search import Choice, choose
from bytelane.tune.tuned import TunedPlanner

__all__ = ["AutoPlanner", "Choice", "TunedPlanner", "choose"]
