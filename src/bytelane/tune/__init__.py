"""Choose by asking the simulator."""

from bytelane.tune.auto import AutoPlanner
from bytelane.tune.search import Choice, choose

__all__ = ["AutoPlanner", "Choice", "choose"]
