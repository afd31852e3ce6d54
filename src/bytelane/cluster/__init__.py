"""The cluster: hosts, links, topology, collectives; and the flows of background traffic."""

from bytelane.cluster.arrivals import Arrival, poisson_arrivals
from bytelane.cluster.cluster import Cluster, Host
from bytelane.cluster.collective import Collective, LinkUse, Sync
from bytelane.cluster.link import Link
from bytelane.cluster.sizes import Sizes, load_sizes
from bytelane.cluster.topology import Star, Topology

__all__ = [
    "Arrival",
    "Cluster",
    "Collective",
    "Host",
    "Link",
    "LinkUse",
    "Sizes",
    "Star",
    "Sync",
    "Topology",
    "load_sizes",
    "poisson_arrivals",
]
