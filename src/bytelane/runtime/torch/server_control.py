"""Control collectives through the parameter servers: after prepare() gloo is not used any more."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from bytelane.errors import TrainingError, TransferFailed
from bytelane.runtime.ps.control import PsControl
from bytelane.runtime.ps.exchanges import most_said_bytes
from bytelane.runtime.sync import KnowsPeers
from bytelane.runtime.sync.engine import PATIENCE_S
from bytelane.runtime.sync.peers import loss_while_waiting, name_failure

# Of one exchange: a server keeps what all ranks say until the last of them has spoken.
MOST_BYTES = 2**23

_COMBINE: dict[object, Callable[[torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.MAX: lambda rows: rows.amax(0),
    dist.ReduceOp.SUM: lambda rows: rows.sum(0),
}


class ServerControl:
    """Small collectives, one after the other, made of exchanges through server 0."""

    def __init__(self, exchanges: PsControl, peers: KnowsPeers) -> None:
        self.rank, self.size = exchanges.rank, exchanges.size
        self._exchanges = exchanges
        self._peers = peers
        self._refusal: TrainingError | None = None

    def disown(self, error: TrainingError) -> None:
        """Refuse every call, in a forked child."""
        self._refusal = error

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, by rank."""
        return [_tensor(said, mine) for said in self._exchange(_bytes(mine), mine.nbytes)]

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
        """Combine the tensors of all ranks, in place."""
        tensor.copy_(_COMBINE[op](torch.stack(self.all_gather(tensor))))

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Overwrite the tensor on all ranks with that of one rank."""
        said = self._exchange(_bytes(tensor) if self.rank == source else b"", tensor.nbytes)
        if self.rank != source:
            tensor.copy_(_tensor(said[source], tensor))

    def _exchange(self, mine: bytes, size: int) -> list[bytes]:
        """Return what every rank has said; all know the size, and cut it alike."""
        said = [bytearray() for _ in range(self.size)]
        most = min(MOST_BYTES, most_said_bytes(self.size))
        for start in range(0, max(size, 1), most):
            for own, more in zip(said, self._say(mine[start : start + most]), strict=True):
                own += more
        return list(map(bytes, said))

    def _say(self, mine: bytes) -> list[bytes]:
        if self._refusal is not None:
            raise self._refusal
        try:
            self._peers.count()
            said = self._exchanges.exchange(mine, waiting=self._look_at_peers())
        except TransferFailed as error:
            raise name_failure(error, self._peers) from error
        except BaseException as error:  # Ctrl-C: to the others, this rank has done its part
            self._peers.report_failure(f"{type(error).__name__}: {error}")
            raise
        self._peers.count_finished()
        return said

    def _look_at_peers(self) -> Callable[[float], None]:
        told_s = PATIENCE_S

        def look(waited_s: float) -> None:
            nonlocal told_s
            if loss := loss_while_waiting(self._peers):
                raise loss
            if waited_s >= told_s:
                told_s += PATIENCE_S
                self._peers.still_waiting(waited_s)

        return look


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _tensor(said: bytes, like: torch.Tensor) -> torch.Tensor:
    if not said:
        return torch.empty_like(like)
    return torch.frombuffer(bytearray(said), dtype=like.dtype).view(like.shape)
