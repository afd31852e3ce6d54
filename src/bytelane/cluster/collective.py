"""Collectives: which directions of a worker's link each one uses, and how much it carries.

A stage of a policy or of a plan only names its collective; the simulator, the accounts and the
contract look it up in this table, or ask :meth:`Cluster.use_of`.
"""

from typing import Literal, NamedTuple

Sync = Literal["allreduce", "ps"]
Collective = Literal["all-reduce", "reduce-scatter", "all-gather", "push", "pull"]


class Meaning(NamedTuple):
    """The properties of a collective that do not depend on the cluster."""

    sync: Sync
    share: float
    """Its share of a whole transfer's bytes, overhead and floor."""
    up: bool
    down: bool
    """Directions in which a worker's own bytes travel."""


MEANINGS: dict[Collective, Meaning] = {
    "all-reduce": Meaning("allreduce", 1.0, up=True, down=True),
    "reduce-scatter": Meaning("allreduce", 0.5, up=True, down=True),
    "all-gather": Meaning("allreduce", 0.5, up=True, down=True),
    "push": Meaning("ps", 1.0, up=True, down=False),
    "pull": Meaning("ps", 1.0, up=False, down=True),
}

# Sequences of collectives that make one whole synchronisation.
WHOLE: dict[Sync, tuple[tuple[Collective, ...], ...]] = {
    "allreduce": (("all-reduce",), ("reduce-scatter", "all-gather")),
    "ps": (("push", "pull"),),
}


class LinkUse(NamedTuple):
    """The load of a collective on the links of one cluster."""

    share: float
    """Its share of a whole transfer's overhead and floor."""
    byte_s: float
    """Seconds that the busiest link needs per byte of a tensor."""
    up: float
    down: float
    """Bytes that leave and reach a worker by its link, per byte of a tensor."""
    direction: int
    """0: up, or both at once; 1: down only, while other messages go up."""
