"""What the engines are handed from outside. Structural types: nobody has to inherit."""

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from bytelane.cluster import Cluster
from bytelane.core.knobs import Knobs
from bytelane.core.plan import Plan
from bytelane.job import Job

Done = Callable[[int, Exception | None], None]
"""Called once per launched operation, from any thread: its number, and what went wrong."""


class Planner(Protocol):
    """Decides, from a measured job (and cluster, if that was measured), what is sent when."""

    def __call__(self, job: Job, version: int, cluster: Cluster | None = None) -> Plan: ...


class Wish(IntEnum):
    """What the first rank would like to be done before the next round; it travels with a round."""

    NOTHING = 0
    PLAN = 1
    """With what is known of the model, and a look at the network."""
    MEASURE_AND_PLAN = 2
    CORRECT = 3
    """Measure the model as it runs under this plan, and plan; that costs little."""


class Review(Protocol):
    """Judges whether a plan still fits, by how long iterations take."""

    def __call__(self, iteration_s: float) -> Wish: ...


class Tuner(Protocol):
    """Looks for better knobs while training goes on."""

    def ask(self) -> Knobs: ...

    def tell(self, knobs: Knobs, seconds: float) -> None: ...


class Transport(Protocol):
    """Carries operations. ``start`` is called in plan order and must not wait for the network."""

    def start(self, operation: int, done: Done) -> None: ...
