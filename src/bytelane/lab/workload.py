"""Draw background flows (Poisson arrivals) for every host: a pure function of the seed."""

import random
from collections.abc import Iterator
from itertools import takewhile

import msgspec

from bytelane.cluster import Arrival, Sizes, poisson_arrivals
from bytelane.errors import InputError
from bytelane.lab.links import TOS, Band
from bytelane.values import as_number

# A host opens one connection per flow.
MOST_FLOWS_PER_S = 10_000
MOST_S = 86_400
# How long flows may go on after the last has begun.
DRAIN_S = 10.0


class FlowRecord(msgspec.Struct, array_like=True):
    """A flow and its completion time; None: it did not finish."""

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
    """Duration in which flows start; None: until stopped."""
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
        """Return the flows that one of the hosts begins, in the order of time."""
        # A string as seed gives the same numbers in every process.
        generator = random.Random(f"{self.seed}/{host}")
        others = [other for other in range(hosts) if other != host]
        flows = poisson_arrivals(generator, self.flows_per_s, self.sizes, others)
        end_s = float("inf") if self.seconds is None else self.seconds
        return takewhile(lambda flow: flow.at_s < end_s, flows)
