"""The process group on which ranks agree: waits patiently, and names who is lost."""

import threading
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from bytelane.errors import PeerError, PeerLost, TrainingError, TransferFailed, TransferTimeout
from bytelane.runtime.engine.engine import PATIENCE_S

# A transfer to a dead rank fails before its sentinel has told of the death; or, if that has died
# too, before the other sentinels have noticed.
VERDICT_S = 8.0


class KnowsPeers(Protocol):
    """What is known of the other ranks."""

    def count(self) -> None:
        """One more operation is launched here."""

    def count_finished(self) -> None:
        """One more operation is over."""

    def loss(self, wait_s: float = 0.0) -> PeerError | None:
        """Return who is lost, if that is known within this time."""

    def left(self) -> list[int]:
        """Return the ranks that have ended in order."""

    def still_waiting(self, waited_s: float) -> None:
        """Say for whom we wait."""

    def who_is_behind(self) -> str:
        """Return which rank has launched least, and how it is."""


class Control:
    """Small collectives, one after the other, that all ranks take part in."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float, peers: KnowsPeers) -> None:
        self._peers = peers
        self._group = group
        self._timeout_s = timeout_s
        self._refusal: TrainingError | None = None

    def disown(self, error: TrainingError) -> None:
        """Refuse everything, in a forked child."""
        self._refusal = error

    @property
    def rank(self) -> int:
        return self._group.rank()

    @property
    def size(self) -> int:
        return self._group.size()

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Return everybody's, by rank."""
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        self._finish(lambda: self._group.allgather([everyone], [mine]))
        return everyone

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
        """Combine everybody's, in place."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(op)
        self._finish(lambda: self._group.allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Overwrite everybody's with that of one rank."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        self._finish(lambda: self._group.broadcast([tensor], options))

    def _finish(self, launch: Callable[[], dist.Work]) -> None:
        if self._refusal is not None:
            raise self._refusal
        self._peers.count()
        over = threading.Event()
        try:
            future = launch().get_future()
            future.add_done_callback(lambda _: over.set())
            self._wait_for(over)
            future.value()
            self._peers.count_finished()
        except RuntimeError as error:
            raise name_failure(error, self._peers) from error

    def _wait_for(self, over: threading.Event) -> None:
        waited_s = 0.0
        while not over.wait(min(PATIENCE_S, self._timeout_s - waited_s)):
            waited_s += PATIENCE_S
            if waited_s >= self._timeout_s:
                raise TransferTimeout(
                    f"other ranks did not come to an agreement within {self._timeout_s:g} s; "
                    f"{self._peers.who_is_behind()}"
                )
            self._peers.still_waiting(waited_s)


def name_failure(error: Exception, peers: KnowsPeers) -> Exception:
    """Return the lost rank as an error, if its loss made a transfer fail.

    A rank that has launched all that we have may have left in order, and closed its connections
    before the last of it was over.
    """
    if (loss := peers.loss(VERDICT_S)) is not None:
        return loss
    if left := peers.left():
        return PeerLost(f"rank {left[0]} has left while a transfer was under way", left[0])
    return TransferFailed(f"a transfer between ranks failed: {error}")
