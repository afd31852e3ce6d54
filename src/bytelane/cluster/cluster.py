"""A cluster: hosts, their links, and the topology that joins them.

With parameter servers the workers push and pull; without servers they all-reduce.
"""

from functools import cached_property

import msgspec
from msgspec.structs import replace

from bytelane.cluster.collective import MEANINGS, Collective, LinkUse, Sync
from bytelane.cluster.link import Link
from bytelane.cluster.topology import Star, Topology
from bytelane.errors import InputError
from bytelane.values import as_number, as_whole, require_flag, require_whole, shown

# More than any cluster that trains; printed tables have a row per host.
MOST_HOSTS = 100_000
# How many times as long one worker may compute as another.
LARGEST_FACTOR = 1e6


class Host(msgspec.Struct, frozen=True):
    """A machine: its link, the ranks and servers that run on it, and how fast it computes."""

    link: Link
    ranks: int = 1
    """Workers; they send at the same time and share the link."""
    servers: int = 0
    """Processes of the parameter server."""
    compute_factor: float = 1.0
    """How many times as long each of its workers computes as the job says."""

    def __post_init__(self) -> None:
        require_whole(self.ranks, "ranks", 0, MOST_HOSTS)
        require_whole(self.servers, "servers", 0, MOST_HOSTS)
        if not 0 < as_number(self.compute_factor, "a compute factor") <= LARGEST_FACTOR:
            raise InputError(
                f"a compute factor of {self.compute_factor} is not possible; use more than 0 and "
                f"at most {LARGEST_FACTOR:,.0f}"
            )


class Cluster(msgspec.Struct, frozen=True, dict=True):
    """Hosts on a network. :meth:`star` makes a cluster whose hosts all have the same link."""

    hosts: tuple[Host, ...]
    topology: Topology = Star()
    shared_link: bool = False
    """A worker and the server on its host take turns on the host's link. The usual model (False)
    puts pushes on one direction and pulls on the other, as if a host's replies cost nothing."""

    def __post_init__(self) -> None:
        require_flag(self.shared_link, "shared_link")
        if not self.workers:
            raise InputError("a cluster of 0 workers cannot train; it needs 1 or more")
        if self.shared_link and not (self.servers and self.colocated):
            raise InputError(
                "a shared link is that of a worker with a server on its host; "
                "there is none here, so leave it out"
            )

    @classmethod
    def star(
        cls,
        workers: int,
        link: Link,
        servers: int = 0,
        colocated: bool = True,
        compute_factors: tuple[float, ...] = (),
        shared_link: bool = False,
    ) -> "Cluster":
        """Join workers and servers, each with the same link, by one switch.

        Without servers the workers synchronise by all-reduce. ``colocated`` servers share a host
        with a worker each, so that part of the traffic stays on the host; others have hosts of
        their own. ``compute_factors``: one per worker; empty: all compute as the job says.
        """
        for name, count in (("workers", workers), ("servers", servers)):
            if as_whole(count, name) > MOST_HOSTS:
                raise InputError(
                    f"{shown(count)} {name} are too many; at most {MOST_HOSTS:,} will do"
                )
        require_flag(colocated, "colocated")
        if workers < 1:
            raise InputError(
                f"a cluster of {shown(workers)} workers cannot train; it needs 1 or more"
            )
        if servers < 0:
            raise InputError(f"{shown(servers)} servers are not possible; 0 means all-reduce")
        if servers and colocated and servers != workers:
            raise InputError(
                f"{servers} servers cannot each share a host with one of {workers} "
                "workers; use as many, or hosts of their own"
            )
        worker = Host(link, servers=int(colocated and servers > 0))
        hosts = (worker,) * workers
        if servers and not colocated:
            hosts += (Host(link, ranks=0, servers=1),) * servers
        equal = cls(hosts, shared_link=shared_link)
        return equal.with_compute_factors(compute_factors) if compute_factors else equal

    def with_compute_factors(self, factors: tuple[float, ...]) -> "Cluster":
        """Return the same cluster with other speeds: one factor per host that has workers."""
        computing = [host for host in self.hosts if host.ranks]
        if len(factors) != len(computing):
            raise InputError(f"{len(factors)} compute factors for {len(computing)} workers")
        rest = iter(factors)
        hosts = (replace(h, compute_factor=next(rest)) if h.ranks else h for h in self.hosts)
        return replace(self, hosts=tuple(hosts))

    def with_link(self, link: Link) -> "Cluster":
        """Return the same cluster, in which every host has this link."""
        changed = {id(host): replace(host, link=link) for host in self.hosts}
        return replace(self, hosts=tuple(changed[id(host)] for host in self.hosts))

    @cached_property
    def _kinds(self) -> tuple[Host, ...]:
        """The distinct host objects: there may be many thousands of hosts."""
        return tuple({id(host): host for host in self.hosts}.values())

    @cached_property
    def workers(self) -> int:
        """Ranks, on all hosts together."""
        return sum(host.ranks for host in self.hosts)

    @cached_property
    def servers(self) -> int:
        """0: the workers synchronise by all-reduce."""
        return sum(host.servers for host in self.hosts)

    @cached_property
    def colocated(self) -> bool:
        """Whether every server shares its host with a worker."""
        return all(host.ranks for host in self._kinds if host.servers)

    @cached_property
    def compute_factors(self) -> tuple[float, ...]:
        """How many times as long each worker computes as the job says; empty: as the job says."""
        if all(host.compute_factor == 1 for host in self._kinds):
            return ()
        return tuple(host.compute_factor for host in self.hosts for _ in range(host.ranks))

    @cached_property
    def link(self) -> Link:
        """The link that a collective of all hosts sees: the lowest rates, the longest times."""
        links = [host.link for host in self._kinds]
        if all(link == links[0] for link in links):
            return links[0]
        return Link(
            min(link.up for link in links),
            max(link.overhead_s for link in links),
            max(link.latency_s for link in links),
            max(link.floor_s for link in links),
            min(link.at_once for link in links),
            min(link.down for link in links),
        )

    @property
    def sync(self) -> Sync:
        return "ps" if self.servers else "allreduce"

    @cached_property
    def wire_factor(self) -> float:
        """Bytes that a message puts on the busiest link, in one direction, per byte of a tensor."""
        if self.sync == "ps":
            return max(max(self._pushed(host)) for host in self._kinds)
        computing = sum(1 for host in self.hosts if host.ranks)
        return 2 * (self.workers - 1) / self.workers if computing > 1 else 0.0

    @property
    def load_factor(self) -> float:
        """The wire factor of a whole synchronisation: doubled if push and pull share a link."""
        return 2 * self.wire_factor if self.shared_link else self.wire_factor

    def use_of(self, collective: Collective) -> LinkUse:
        """Return what a collective puts on the links; refuse one that this cluster cannot do."""
        if collective not in self._uses:  # tuners ask thousands of times
            self._uses[collective] = self._use_of(collective)
        return self._uses[collective]

    @cached_property
    def _uses(self) -> dict[Collective, LinkUse]:
        return {}

    def _use_of(self, collective: Collective) -> LinkUse:
        sync, share, up, down = MEANINGS[collective]
        if sync != self.sync:
            has = f"{self.servers} servers" if self.servers else "no servers"
            raise InputError(f"{collective} has no meaning for a cluster that has {has}")
        if sync == "allreduce" or self.shared_link:
            byte_s = share * (self.wire_factor / self.link.slower)
            carried = self.wire_factor * share
            return LinkUse(share, byte_s, carried, carried, direction=0)
        byte_s = share * max(self._pushed_s(host, back=down) for host in self._kinds)
        elsewhere = (self.servers - host.servers for host in self._kinds if host.ranks)
        carried = max(elsewhere) / self.servers * share
        return LinkUse(share, byte_s, carried * up, carried * down, direction=int(down))

    def _pushed(self, host: Host) -> tuple[float, float]:
        """Return the bytes that leave and reach a host per byte pushed; tensors spread evenly."""
        away, others = self.servers - host.servers, self.workers - host.ranks
        return host.ranks * away / self.servers, host.servers * others / self.servers

    def _pushed_s(self, host: Host, *, back: bool) -> float:
        """Return how long a host's link needs per byte pushed, or per byte pulled (``back``)."""
        out, into = self._pushed(host)
        up, down = (into, out) if back else (out, into)
        return max(up / host.link.up, down / host.link.down)

    def transfer_s(self, size: int) -> float:
        """The time that one message takes on the link, in one direction, without latency."""
        if self.wire_factor == 0:
            return 0.0
        link = self.link
        return max(link.floor_s, link.overhead_s + self.wire_factor * size / link.slower)
