"""On what it is trained: hosts, links, and how they are joined."""

from bytelane.cluster.cluster import Cluster, Link, Sync

__all__ = ["Cluster", "Link", "Sync"]
