"""Topologies: which nodes a network joins by cables.

Hosts are numbered from 0, switches follow them. A cable that ends at a host is that host's link.
"""

from typing import NamedTuple

import msgspec


class Cable(NamedTuple):
    """Two nodes that are joined."""

    one: int
    other: int


class Star(msgspec.Struct, frozen=True, tag="star"):
    """Every host has one link to the same switch, which is never the bottleneck."""

    @property
    def switches(self) -> int:
        return 1

    def cables(self, hosts: int) -> tuple[Cable, ...]:
        """Return the cables that join this many hosts."""
        return tuple(Cable(host, hosts) for host in range(hosts))


Topology = Star
"""One kind of network, so far; others join it in a union."""
