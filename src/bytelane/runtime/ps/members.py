"""Membership of the workers in a parameter server's job: joined, left, or silent."""

from typing import Literal, NamedTuple

from bytelane import __version__
from bytelane.runtime.ps.frames import PROTOCOL, Join, Joined, Refused, rank_of

Side = Literal["up", "down"]
SILENCE_S = 60.0
"""A worker that has sent nothing for so long counts as gone; they send a Beat every second."""


class _Worker:
    def __init__(self, name: bytes, now: float) -> None:
        self.name = name
        self.sides: set[Side] = set()
        self.has_left = False
        self.heard_at = now


class Member(NamedTuple):
    """A worker that takes part."""

    rank: int
    name: bytes
    """Its identity on both connections."""


class Members:
    """Workers of one job; the first that joins says which job that is."""

    def __init__(self) -> None:
        self._terms: Join | None = None
        self._workers: dict[int, _Worker] = {}

    @property
    def world(self) -> int:
        return 0 if self._terms is None else self._terms.world

    def join(self, side: Side, name: bytes, asked: Join, now: float) -> Joined | Refused | None:
        """Let a worker take part, or return why not; None if it is not who it says."""
        if rank_of(name) != asked.rank:
            return None
        reason = self._reason_against(name, asked)
        if reason is not None:
            return Refused(reason)
        self._terms = self._terms or asked
        worker = self._workers.setdefault(asked.rank, _Worker(name, now))
        worker.sides.add(side)
        worker.heard_at = now
        return Joined(asked.server, asked.servers)

    def find(self, side: Side, name: bytes, now: float) -> Member | None:
        """Return the worker that a message on this connection is from, if it takes part."""
        rank = rank_of(name)
        worker = None if rank is None else self._workers.get(rank)
        if rank is None or worker is None or worker.name != name:
            return None
        if worker.has_left and side == "up":  # on the other one messages may be late
            return None
        worker.heard_at = now
        return Member(rank, name) if side in worker.sides else None

    def all(self) -> list[Member]:
        """Return the workers that have joined and not left, in rank order."""
        there = sorted(self._workers.items())
        return [Member(rank, worker.name) for rank, worker in there if not worker.has_left]

    def name_of(self, rank: int) -> bytes | None:
        """Return a worker's identity, None if it does not take part."""
        worker = self._workers.get(rank)
        return None if worker is None or worker.has_left else worker.name

    def leave(self, rank: int) -> None:
        """Record that a worker has ended in order."""
        self._workers[rank].has_left = True

    def are_heard(self, now: float, silence_s: float) -> bool:
        """Whether any worker that has not left was heard within this time."""
        there = (worker for worker in self._workers.values() if not worker.has_left)
        return any(now - worker.heard_at <= silence_s for worker in there)

    def is_over(self, now: float) -> bool:
        """Whether all workers that had joined have left, or say nothing any more."""
        return bool(self._workers) and all(
            worker.has_left or now - worker.heard_at > SILENCE_S
            for worker in self._workers.values()
        )

    def _reason_against(self, name: bytes, asked: Join) -> str | None:
        if asked.protocol != PROTOCOL or asked.version != __version__:
            return (
                f"this parameter server is bytelane {__version__} (protocol {PROTOCOL}) and the "
                f"worker bytelane {asked.version} (protocol {asked.protocol}); "
                "install the same version everywhere"
            )
        if asked.rank >= asked.world or asked.server >= asked.servers:
            return (
                f"there is no rank {asked.rank} of {asked.world}, "
                f"or no server {asked.server} of {asked.servers}"
            )
        terms = self._terms
        if terms is None:
            return None
        if asked.job != terms.job:
            return "this parameter server is in use by another job; start servers for each job"
        if asked.world != terms.world:
            return f"rank {asked.rank} says {asked.world} ranks, others say {terms.world}"
        if (asked.server, asked.servers) != (terms.server, terms.servers):
            return (
                f"rank {asked.rank} has this server as number {asked.server} of {asked.servers}, "
                f"others as {terms.server} of {terms.servers}; "
                "give all ranks the same servers in the same order"
            )
        worker = self._workers.get(asked.rank)
        if worker is not None and (worker.name != name or worker.has_left):
            return f"rank {asked.rank} of this job has joined already; each rank can join once"
        return None
