"""Which flows the hosts begin, and when: a pure function of the seed."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from bytelane.errors import InputError
from bytelane.lab.links import TOS, Band
from bytelane.lab.sizes import Sizes
from bytelane.values import as_number

# A host opens a connection for each.
MOST_FLOWS_PER_S = 10_000
MOST_S = 86_400
# How long flows may go on after the last has begun.
DRAIN_S = 10.0


class Arrival(NamedTuple):
    """A flow that begins."""

    at_s: float
    destination: int
    bytes: int


class FlowRecord(msgspec.Struct, array_like=True):
    """A flow and how long it took; None: it did not end."""

    at_s: float
    bytes: int
    took_s: float | None = None


class Workload(msgspec.Struct, frozen=True):
    """Poisson arrivals at every host, each to another host chosen at random."""

    flows_per_s: float
    """Per host."""
    sizes: Sizes
    band: Band = "normal"
    seconds: float | None = None
    """How long flows begin; None: until it is stopped."""
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < as_number(self.flows_per_s, "flows_per_s") <= MOST_FLOWS_PER_S:
            raise InputError(
                f"{self.flows_per_s:g} flows per second are not possible; use more than 0 and at "
                f"most {MOST_FLOWS_PER_S:,}"
            )
        if self.band not in TOS:
            raise InputError(f"band {self.band!r} is not one of {', '.join(TOS)}")
        if self.seconds is not None and not 0 < as_number(self.seconds, "seconds") <= MOST_S:
            raise InputError(
                f"{self.seconds} seconds of traffic are not possible; use more than 0 and at most "
                f"{MOST_S:,}"
            )

    def arrivals(self, host: int, hosts: int) -> Iterator[Arrival]:
        """Yield what one of the hosts begins, in the order of time."""
        # A text as seed: Python makes the same numbers of it in every process.
        chance = random.Random(f"{self.seed}/{host}")
        others = [other for other in range(hosts) if other != host]
        at_s = chance.expovariate(self.flows_per_s)
        while self.seconds is None or at_s < self.seconds:
            yield Arrival(at_s, chance.choice(others), self.sizes.quantile(chance.random()))
            at_s += chance.expovariate(self.flows_per_s)
