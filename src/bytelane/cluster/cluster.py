"""Workers joined by a network in which every worker has the same link.

Hosts with a compute factor of their own, servers and topologies come with the policies that can
tell them apart; an all-reduce among equal workers sees one serial link.
"""

import math

import msgspec

from bytelane.errors import InputError
from bytelane.units import format_rate, format_seconds


class Link(msgspec.Struct, frozen=True):
    """One direction of a worker's connection to the network.

    ``overhead_s`` is the time the link is occupied per message beside its bytes (theta in the
    literature's cost models); ``latency_s`` passes between the last byte and the moment at which
    the end is known, while the link is already free (lam).
    """

    rate: float
    """Bytes per second."""
    overhead_s: float = 0.0
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise InputError(
                f"a link of {format_rate(self.rate)} cannot carry anything; "
                "its rate must be finite and above 0"
            )
        for field in ("overhead_s", "latency_s"):
            seconds = getattr(self, field)
            if not (math.isfinite(seconds) and seconds >= 0):
                raise InputError(f"{field} is {seconds}; a time must be finite and not negative")

    def __str__(self) -> str:
        return (
            f"{format_rate(self.rate)}, overhead {format_seconds(self.overhead_s)}, "
            f"latency {format_seconds(self.latency_s)}"
        )


class Cluster(msgspec.Struct, frozen=True):
    """A number of equal workers and the link that each of them has."""

    workers: int
    link: Link

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(
                f"a cluster of {self.workers} workers cannot train; it needs 1 or more"
            )

    @property
    def allreduce_wire_factor(self) -> float:
        """Bytes that a bandwidth-optimal all-reduce puts on a link per byte of the tensor."""
        return 2 * (self.workers - 1) / self.workers

    def allreduce_s(self, size: int) -> float:
        """The time that the all-reduce of one message occupies the link."""
        if self.workers == 1:
            return 0.0
        return self.link.overhead_s + self.allreduce_wire_factor * size / self.link.rate
