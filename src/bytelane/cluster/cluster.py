"""Workers joined by a network in which every worker has the same link.

With servers the workers synchronise through them (push, then pull), without by all-reduce.
"""

from typing import Literal

import msgspec

from bytelane.errors import InputError
from bytelane.units import FASTEST_RATE, LONGEST_S, SLOWEST_RATE, format_rate, format_seconds
from bytelane.values import as_number, as_whole, require_flag, require_number, shown

Sync = Literal["allreduce", "ps"]

# More than any cluster that trains; every one is a row in what is printed.
MOST_HOSTS = 100_000
# How many times as long one worker may compute as another.
LARGEST_FACTOR = 1e6


class Link(msgspec.Struct, frozen=True):
    """One direction of a host's connection to the network.

    ``overhead_s`` is the time the link is occupied per message beside its bytes (theta in the
    literature's cost models); ``latency_s`` passes between the last byte and the moment at which
    the end is known, while the link is already free (lam). ``floor_s`` is how long a message is
    handled, however little it carries: threads are woken up on all hosts, step by step of a
    collective. Messages are handled one after the other, while the bytes of another may be on the
    link; no more than two are under way at a time, as in gloo.
    """

    rate: float
    """Bytes per second."""
    overhead_s: float = 0.0
    latency_s: float = 0.0
    floor_s: float = 0.0

    def __post_init__(self) -> None:
        rate = as_number(self.rate, "rate")
        if not SLOWEST_RATE <= rate <= FASTEST_RATE:
            raise InputError(
                f"a link of {format_rate(rate)} cannot carry anything; its rate must be "
                f"{format_rate(SLOWEST_RATE)} to {format_rate(FASTEST_RATE)}"
            )
        for field in ("overhead_s", "latency_s", "floor_s"):
            require_number(getattr(self, field), field, 0, LONGEST_S)

    def __str__(self) -> str:
        floor = f", floor {format_seconds(self.floor_s)}" if self.floor_s else ""
        return (
            f"{format_rate(self.rate)}, overhead {format_seconds(self.overhead_s)}, "
            f"latency {format_seconds(self.latency_s)}{floor}"
        )


class Cluster(msgspec.Struct, frozen=True):
    """Workers, perhaps servers, and the link that each host has."""

    workers: int
    link: Link
    servers: int = 0
    """0: the workers synchronise by all-reduce."""
    colocated: bool = True
    """Each server shares a host with a worker, so that part of the traffic stays at home."""
    compute_factors: tuple[float, ...] = ()
    """How much longer each worker computes than the job says; empty: all as the job says."""
    shared_link: bool = False
    """A worker and the server beside it take turns on their host's link. The usual model has pushes
    on one direction and pulls on the other, as if the replies that a host sends cost nothing."""

    def __post_init__(self) -> None:
        for field in ("workers", "servers"):
            if as_whole(getattr(self, field), field) > MOST_HOSTS:
                count = shown(getattr(self, field))
                raise InputError(f"{count} {field} are too many; at most {MOST_HOSTS:,} will do")
        for field in ("colocated", "shared_link"):
            require_flag(getattr(self, field), field)
        if self.workers < 1:
            raise InputError(
                f"a cluster of {shown(self.workers)} workers cannot train; it needs 1 or more"
            )
        if self.servers < 0:
            raise InputError(f"{shown(self.servers)} servers are not possible; 0 means all-reduce")
        if self.servers and self.colocated and self.servers != self.workers:
            raise InputError(
                f"{self.servers} servers cannot each share a host with one of {self.workers} "
                "workers; use as many, or hosts of their own"
            )
        if self.shared_link and not (self.servers and self.colocated):
            raise InputError(
                "a shared link is that of a worker with a server on its host; "
                "there is none here, so leave it out"
            )
        if self.compute_factors and len(self.compute_factors) != self.workers:
            raise InputError(
                f"{len(self.compute_factors)} compute factors for {self.workers} workers"
            )
        for factor in self.compute_factors:
            if not 0 < as_number(factor, "a compute factor") <= LARGEST_FACTOR:
                raise InputError(
                    f"a compute factor of {factor} is not possible; use more than 0 and at most "
                    f"{LARGEST_FACTOR:,.0f}"
                )

    @property
    def sync(self) -> Sync:
        return "ps" if self.servers else "allreduce"

    @property
    def wire_factor(self) -> float:
        """Bytes that a message puts on the busiest link, in one direction, per byte of a tensor."""
        if self.workers == 1 and (self.sync == "allreduce" or self.colocated):
            return 0.0
        if self.sync == "allreduce":
            return 2 * (self.workers - 1) / self.workers
        if self.colocated:
            return (self.workers - 1) / self.workers
        # Tensors are spread evenly: a server takes from all workers, a worker gives to all servers.
        return max(1.0, self.workers / self.servers)

    @property
    def load_factor(self) -> float:
        """The same of all messages of an iteration: where push and pull share a link, twice."""
        return 2 * self.wire_factor if self.shared_link else self.wire_factor

    def transfer_s(self, size: int) -> float:
        """The time that one message is under way, in one direction."""
        if self.wire_factor == 0:
            return 0.0
        link = self.link
        return max(link.floor_s, link.overhead_s + self.wire_factor * size / link.rate)
