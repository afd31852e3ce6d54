"""Planner and Tuner, the interfaces that users implement. Structural: inheriting is optional."""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, Protocol

import msgspec

from bytelane.cluster import Cluster
from bytelane.core.plan import Plan
from bytelane.core.setting import Context, Setting, Space, Trial
from bytelane.job import Job


class Wish(IntEnum):
    """What rank 0 asks all ranks to do before the next round; the request travels with a round."""

    NOTHING = 0
    PLAN = 1
    """Plan again, with the model and the network as they were measured before."""
    MEASURE_AND_PLAN = 2
    """Measure the model and the network, and plan; that takes seconds."""
    CORRECT = 3
    """Measure the model as it runs under this plan, and plan; that costs little."""

    @property
    def measures_model(self) -> bool:
        return self in (Wish.MEASURE_AND_PLAN, Wish.CORRECT)

    @property
    def measures_network(self) -> bool:
        return self is Wish.MEASURE_AND_PLAN


class TransferTime(NamedTuple):
    """The bytes of one operation, and when rank 0 launched it and saw it finish."""

    bytes: int
    launched_s: float
    finished_s: float


class Observation(msgspec.Struct, frozen=True):
    """What rank 0 has measured of training under a plan."""

    step: int
    """How often the optimizer has stepped."""
    plan_version: int
    iteration_s: float | None
    """Median of the last few iterations, from forward to forward; None before there are two."""
    link_busy_s: float | None = None
    """How long transfers were in flight in the last whole iteration."""
    transfers: tuple[TransferTime, ...] = ()
    """Everything that was sent in that iteration, in no particular order."""


class Planner(Protocol):
    """Plans the transfers of a model, for as long as it is trained.

    All ranks are given a planner, and only rank 0 calls its own. After 3 iterations, and whenever
    :meth:`observe` has asked for it, :meth:`plan` is called between two rounds, while all ranks
    wait. A subclass has to write only :meth:`plan`.
    """

    name: str = "planner"
    """As users call it."""
    needs_network: bool = False
    """Whether the network is to be measured, by all ranks, before the first plan."""

    def plan(self, job: Job, cluster: Cluster | None = None, version: int = 1) -> Plan:
        """Plan for the model as it was measured on the slowest rank.

        ``cluster`` is the network as it was measured last; None if it never was. The plan has this
        ``version``. One that is not the last one plus one says that another planner, or the plain
        buckets for a changed model, had control in between.
        """
        ...

    def observe(self, seen: Observation) -> Wish:
        """Judge the plan by how training goes, from time to time; say what all ranks are to do."""
        return Wish.NOTHING

    def summarise(self, seen: Observation, replaced_by: str | None = None) -> str:
        """Return the text that is printed when the script ends; empty prints nothing.

        ``replaced_by`` names the planner that a user has handed control to since.
        """
        return ""


PlanFunction = Callable[[Job, Cluster | None, int], Plan]


class PlannedBy(Planner):
    """A planner that is only a function: it plans once, and again when a model has changed."""

    def __init__(self, function: PlanFunction, name: str = "") -> None:
        self.name = name or getattr(function, "__name__", "planner")
        self._function = function

    def plan(self, job: Job, cluster: Cluster | None = None, version: int = 1) -> Plan:
        return self._function(job, cluster, version)


class Tuner(Protocol):
    """Looks for the setting with the shortest iterations, one trial after the other.

    The order of calls is ``begin``, then any number of times ``ask`` and ``tell``; ``begin`` comes
    again when model or network were measured again. All of them come from one thread, between two
    iterations, so they should take milliseconds. A tuner has no clock and no random numbers of its
    own: both are arguments of its constructor.
    """

    @property
    def space(self) -> Space:
        """The settings that it chooses from; each of its answers is one of them."""
        ...

    def begin(self, context: Context) -> None:
        """Take note of the model and the network in which settings will be tried from now on.

        A tuner that remembers states of the network looks here whether it knows this one. Earlier
        trials may no longer hold.
        """
        ...

    def ask(self) -> Setting:
        """Return the setting to run next: another one to try, or the best that is known.

        Asked again without having been told anything, it gives the same answer. When there is
        nothing left to try, it goes on to give the best one, so there is always an answer.
        """
        ...

    def tell(self, trial: Trial) -> None:
        """Take note of how a setting went, whether it was asked for or not.

        The same setting may be told again, with other seconds: measurements are noisy, and trials
        go on while a setting runs. A setting that has failed is not asked for again in this
        context.
        """
        ...
