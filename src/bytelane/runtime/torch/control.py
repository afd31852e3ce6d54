"""Control collectives, on which ranks agree: they wait up to a timeout and name lost ranks."""

import threading
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from bytelane.errors import TrainingError, TransferTimeout
from bytelane.runtime.sync.engine import PATIENCE_S
from bytelane.runtime.sync.peers import loss_while_waiting, name_failure
from bytelane.runtime.torch.groups import Groups

# How often a rank that waits for an agreement asks whether a peer is lost.
_STEP_S = 0.25


class Control(Protocol):
    """Small collectives, one after the other, that all ranks take part in."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, by rank."""

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
        """Combine the tensors of all ranks, in place."""

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Overwrite the tensor on all ranks with that of one rank."""

    def disown(self, error: TrainingError) -> None:
        """Refuse every call, in a forked child."""


class GlooControl:
    """Control collectives on a process group of gloo's."""

    def __init__(self, groups: Groups, timeout_s: float) -> None:
        self._peers = groups.peers
        self._groups = groups
        self._group = groups.agreeing
        self._timeout_s = timeout_s
        self._refusal: TrainingError | None = None

    def disown(self, error: TrainingError) -> None:
        """Refuse every call, in a forked child."""
        self._refusal = error

    @property
    def rank(self) -> int:
        return self._group.rank()

    @property
    def size(self) -> int:
        return self._group.size()

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, by rank."""
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        self._finish(lambda: self._group.allgather([everyone], [mine]))
        return everyone

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
        """Combine the tensors of all ranks, in place."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(op)
        self._finish(lambda: self._group.allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Overwrite the tensor on all ranks with that of one rank."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        self._finish(lambda: self._group.broadcast([tensor], options))

    def _finish(self, launch: Callable[[], dist.Work]) -> None:
        if self._refusal is not None:
            raise self._refusal
        over = threading.Event()
        # Nothing may stay in flight after an error: gloo would wait for it at exit, too.
        with self._groups.breaking():
            self._peers.count()
            try:
                future = launch().get_future()
                future.add_done_callback(lambda _: over.set())
                self._wait_for(over)
                future.value()
                self._peers.count_finished()
            except RuntimeError as error:
                raise name_failure(error, self._peers) from error

    def _wait_for(self, over: threading.Event) -> None:
        waited_s, told_s = 0.0, PATIENCE_S
        while not over.wait(min(_STEP_S, self._timeout_s - waited_s)):
            waited_s += _STEP_S
            # A frozen rank keeps its connections, and prepare() has no session yet to break them.
            if loss := loss_while_waiting(self._peers):
                raise loss
            if waited_s >= self._timeout_s:
                raise TransferTimeout(
                    f"other ranks did not come to an agreement within {self._timeout_s:g} s; "
                    f"{self._peers.who_is_behind()}"
                )
            if waited_s >= told_s:
                told_s += PATIENCE_S
                self._peers.still_waiting(waited_s)
