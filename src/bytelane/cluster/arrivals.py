"""Poisson arrivals of background flows: when each begins, where it goes, how large it is.

The random generator is the caller's, so the laboratory and a simulator draw the same flows from the
same seed, and this package stays free of randomness.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bytelane.cluster.sizes import Sizes

if TYPE_CHECKING:
    from random import Random


class Arrival(NamedTuple):
    """A flow that begins."""

    at_s: float
    destination: int
    bytes: int


def poisson_arrivals(
    generator: "Random", flows_per_s: float, sizes: Sizes, destinations: Sequence[int]
) -> Iterator[Arrival]:
    """Yield the flows that one host begins, in the order of time and without end.

    Gaps are exponential; every destination is equally likely.
    """
    at_s = generator.expovariate(flows_per_s)
    while True:
        destination = generator.choice(destinations)
        yield Arrival(at_s, destination, sizes.quantile(generator.random()))
        at_s += generator.expovariate(flows_per_s)
