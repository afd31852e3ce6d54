"""The other ranks: who is lost ends every session here; who is slow is waited for, and named."""

import os
import sys
import weakref
from collections.abc import Callable
from types import TracebackType

import torch
import torch.distributed as dist

from bytelane.errors import PeerError, TrainingError
from bytelane.runtime.engine.engine import PATIENCE_S
from bytelane.runtime.torch.control import Control
from bytelane.runtime.watch.address import reachable_address
from bytelane.runtime.watch.standing import waiting_line, who_is_behind
from bytelane.runtime.watch.watcher import Watcher
from bytelane.terminal import announce

End = Callable[[TrainingError], None]


class Peers:
    """What this process knows of the other ranks, for all models that it trains."""

    def __init__(self, control: Control) -> None:
        self._world = dist.group.WORLD
        self._has_failed = False
        self._methods: list[weakref.WeakMethod[End]] = []
        self._launched = 0
        self._rank, self._size = control.rank, control.size
        host = reachable_address(os.environ.get("MASTER_ADDR"))
        self._watcher = Watcher(self._rank, self._size, host=host, say=announce)
        mine = torch.frombuffer(bytearray(self._watcher.address), dtype=torch.uint8)
        self._watcher.connect([bytes(row.tolist()) for row in control.all_gather(mine)])
        self._watcher.on_loss(self._end_all)

    def tell(self, end: End) -> None:
        """Have this method called, in some thread, when a rank is lost."""
        self._methods = [method for method in self._methods if method() is not None]
        self._methods.append(weakref.WeakMethod(end))

    def count(self) -> None:
        """One more operation is launched here; all ranks launch the same ones."""
        self._launched += 1
        self._watcher.progress(self._launched)

    def loss(self, wait_s: float = 0.0) -> PeerError | None:
        """Return who is lost, if that is known within this time."""
        return self._watcher.loss(wait_s)

    def still_waiting(self, waited_s: float) -> None:
        """Say for whom we wait, ever more rarely: one rank for all that wait."""
        behind = self._watcher.behind()
        waiting = set(range(self._size)) - {standing.rank for standing in behind}
        if self._rank == min(waiting) and _is_telling(waited_s):
            announce(waiting_line(behind, waited_s))

    def who_is_behind(self) -> str:
        """Say which rank has launched least, and how it is."""
        return who_is_behind(self._watcher.behind())

    def report_failure(self, message: str) -> None:
        """Tell the others why this rank cannot go on."""
        self._has_failed = True
        self._watcher.report_failure(message)

    @property
    def is_usable(self) -> bool:
        """Tell whether all these ranks can still train together."""
        same_world = self._world is dist.group.WORLD
        return same_world and not self._has_failed and self._watcher.loss() is None

    def close(self) -> None:
        """Leave in order."""
        self._watcher.close()

    def _end_all(self, error: PeerError) -> None:
        for method in self._methods:
            if end := method():
                end(error)


_peers: Peers | None = None


def meet(control: Control) -> Peers:
    """Return the other ranks; all get to know each other again if somebody has to."""
    global _peers
    somebody_cannot = torch.tensor(int(_peers is None or not _peers.is_usable))
    control.all_reduce(somebody_cannot, dist.ReduceOp.MAX)
    if somebody_cannot:
        leave()
        _peers = Peers(control)
        _report_what_is_not_caught()
    assert _peers is not None
    return _peers


def leave() -> None:
    """Tell the others that this rank has ended in order."""
    global _peers
    if _peers is not None:
        _peers.close()
        _peers = None


def _report_what_is_not_caught() -> None:
    former = sys.excepthook
    if getattr(former, "reports_to_peers", False):
        return

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if _peers is not None:
            _peers.report_failure(f"{kind.__name__}: {error}")
        former(kind, error, trace)

    report.reports_to_peers = True  # type: ignore[attr-defined]
    sys.excepthook = report


def _is_telling(waited_s: float) -> bool:
    """Tell at 5, 10, 20, 40... seconds."""
    steps = round(waited_s / PATIENCE_S)
    return steps & (steps - 1) == 0
