"""Track the other ranks: a lost rank ends every session here; a slow one is waited for and named.

Sentinels come first. A rank that enters ``prepare`` starts its own, leaves its address in torch's
store, and its sentinel gets to know the others one by one, as they come. Sentinels watch every wait
after that; before, the connections of the user's own process group show lost ranks.
"""

import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import torch.distributed as dist

from bytelane.errors import (
    PeerError,
    PeerFailed,
    PeerLost,
    TrainingError,
    TransferFailed,
    TransferTimeout,
)
from bytelane.runtime.liveness.address import reachable_address
from bytelane.runtime.liveness.peer_status import waiting_line, who_is_behind
from bytelane.runtime.liveness.rank_names import name_ranks
from bytelane.runtime.liveness.watcher import Watcher
from bytelane.runtime.sync.engine import PATIENCE_S
from bytelane.runtime.sync.peers import VERDICT_S, loss_while_waiting
from bytelane.runtime.torch.background_call import BackgroundCall
from bytelane.runtime.torch.rendezvous import Links, Rendezvous
from bytelane.terminal import announce

End = Callable[[TrainingError], None]
Result = TypeVar("Result")

_STEP_S = 0.1
# A connection breaks before the sentinel of that rank has reported why.
_REASON_S = 2.0
_BREAKING_S = 1.0


class Peers:
    """The state of the other ranks, for all models that this process trains."""

    def __init__(self) -> None:
        self.is_new = True
        """Whether the ranks have not met yet."""
        self.page = ""
        """Prefix of the next keys in the store; the same on all ranks."""
        self._world = dist.group.WORLD
        self._has_failed = False
        self._methods: list[weakref.WeakMethod[End]] = []
        self._launched = self._finished = 0
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._absent = set(range(self._size)) - {self._rank}
        self._links = Links()
        self._rendezvous = Rendezvous(self._rank, self._size)
        self._calls: list[BackgroundCall[Any]] = []
        host = reachable_address(os.environ.get("MASTER_ADDR"))
        self._watcher = Watcher(self._rank, self._size, host=host, say=announce)
        self._watcher.on_loss(self._end_all)

    def tell(self, end: End) -> None:
        """Call ``end``, in some thread, when a rank is lost."""
        self._methods = [method for method in self._methods if method() is not None]
        self._methods.append(weakref.WeakMethod(end))
        if loss := self._watcher.loss():  # it may have come just before
            end(loss)

    def count(self) -> None:
        """Count one more operation launched here; all ranks launch the same ones."""
        self._launched += 1
        self._watcher.progress(self._launched)

    def count_finished(self) -> None:
        """Count one more operation that is over: all ranks have done their part of it."""
        self._finished += 1
        self._watcher.finished(self._finished)

    def loss(self, wait_s: float = 0.0) -> PeerError | None:
        """Return the lost rank as an error, if a loss is known within this time."""
        return self._watcher.loss(wait_s)

    def left(self, for_s: float = 0.0) -> list[int]:
        """Return the ranks that have ended in order, at least so long ago."""
        return self._watcher.left(for_s)

    def still_waiting(self, waited_s: float) -> None:
        """Print which ranks are awaited, at doubling intervals, on one of the ranks that wait."""
        behind = self._watcher.behind()
        waiting = set(range(self._size)) - {status.rank for status in behind}
        if self._rank == min(waiting) and _is_telling(waited_s):
            announce(waiting_line(behind, waited_s))

    def who_is_behind(self) -> str:
        """Say which rank has launched least, and its state."""
        return who_is_behind(self._watcher.behind())

    def report_failure(self, message: str) -> None:
        """Tell the others why this rank cannot go on."""
        self._has_failed = True
        self._watcher.report_failure(message)

    def give_up(self, error: BaseException) -> None:
        """Tell the others why this rank does not take part any more, unless they know already."""
        self._has_failed = True
        if isinstance(error, PeerError):
            self._watcher.give_up(error)
        elif isinstance(error, TrainingError):
            self._watcher.report_failure(str(error))
        else:
            self._watcher.report_failure(f"{type(error).__name__}: {error}")

    @property
    def is_usable(self) -> bool:
        """Tell whether all these ranks can still train together."""
        same_world = self._world is dist.group.WORLD
        return same_world and not self._has_failed and self._watcher.loss() is None

    # --- meeting -------------------------------------------------------------------------------

    def meet(self, page: str, timeout_s: float) -> bool:
        """Wait for all ranks to come here; tell whether all have met before, or none has."""
        new: dict[int, bool] = {}
        over = threading.Event()
        self._absent = set(range(self._size)) - {self._rank}

        def found(rank: int, word: bytes) -> None:
            new[rank] = word[:1] == b"1"
            if new[rank] and self.is_new:
                self._watcher.connect(rank, word[1:])
            self._absent.discard(rank)

        mine = (b"1" if self.is_new else b"0") + self._watcher.address
        self.watch_over(
            lambda: self._rendezvous.exchange(page, mine, found, over),
            over,
            timeout_s,
            lambda limit: f"{name_ranks(sorted(self._absent))} did not call prepare() {limit}",
        )
        self.page = page
        alike = all(other == self.is_new for other in new.values())
        if alike and (loss := self.loss()):
            raise loss
        return alike

    def exchange(self, page: str, mine: bytes, timeout_s: float) -> list[bytes]:
        """Return what every rank has left in the store under this page, by rank."""
        over, found = threading.Event(), {self._rank: mine}
        self.do_together(
            lambda: self._rendezvous.exchange(page, mine, found.__setitem__, over),
            timeout_s,
            "other ranks did not start their servers",
            over,
        )
        return [found[rank] for rank in range(self._size)]

    def open_group(self, page: str, timeout_s: float) -> dist.ProcessGroup:
        """Connect all ranks once more, for operations of one kind."""
        over = threading.Event()
        return self.do_together(
            lambda: self._rendezvous.open_group(page, over),
            timeout_s,
            "connections to all ranks did not open",
            over,
        )

    def do_together(
        self,
        do: Callable[[], Result],
        timeout_s: float,
        complaint: str,
        over: threading.Event | None = None,
    ) -> Result:
        """Run a call that all ranks make, and that ends only when all have made it."""
        self.count()
        result = self.watch_over(
            do,
            over or threading.Event(),
            timeout_s,
            lambda limit: f"{complaint} {limit}; {self.who_is_behind()}",
        )
        self.count_finished()
        return result

    def watch_over(
        self,
        do: Callable[[], Result],
        over: threading.Event,
        timeout_s: float,
        complain: Callable[[str], str],
    ) -> Result:
        """Run a call that may block silently; raise a loss meanwhile, or a timeout.

        ``over`` is set when this no longer waits for the call.
        """
        call = BackgroundCall(do)
        self._calls = [*(one for one in self._calls if not one.wait(0)), call]
        began_s, told_s = time.monotonic(), PATIENCE_S
        try:
            while not call.wait(_STEP_S):
                waited_s = time.monotonic() - began_s
                self._raise_loss(waited_s)
                if waited_s >= timeout_s:
                    raise TransferTimeout(complain(f"within {timeout_s:g} s"))
                if waited_s >= told_s:
                    told_s *= 2
                    self._say_for_whom(waited_s)
            return call.result()
        except (RuntimeError, TransferFailed) as error:
            raise self._named(error) from error
        except BaseException as error:
            self.give_up(error)
            raise
        finally:
            over.set()

    def _raise_loss(self, waited_s: float) -> None:
        # While ranks meet, one that has left may be about to come anew.
        loss = self.loss() if self._absent else loss_while_waiting(self)
        # A rank that has failed may call prepare() again: then all begin anew.
        if loss and not (isinstance(loss, PeerFailed) and self._absent and not self.is_new):
            raise loss
        if (rank := self._links.broken(waited_s)) is not None:
            raise self._watcher.loss(_REASON_S) or _ended(rank)

    def _named(self, error: Exception) -> TrainingError:
        """Return the loss of the rank because of which the store or a group has failed."""
        deadline_s = time.monotonic() + VERDICT_S
        named: TrainingError | None = None
        while named is None and time.monotonic() < deadline_s:
            named = self._watcher.loss(_STEP_S)
            rank = self._links.broken(0.0)
            if named is None and rank is not None:
                named = self._watcher.loss(_REASON_S) or _ended(rank)
        named = named or TransferFailed(f"ranks cannot meet: {error}")
        self.give_up(named)
        return named

    def _say_for_whom(self, waited_s: float) -> None:
        absent = sorted(self._absent)
        if not absent:
            self.still_waiting(waited_s)
        elif self._rank == min(set(range(self._size)) - self._absent):
            not_yet = f"{'it has' if len(absent) == 1 else 'they have'} not called prepare()"
            announce(f"waiting for {name_ranks(absent)} for {waited_s:.0f} s; {not_yet}")

    # --- leaving -------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave in order."""
        self._watcher.close()
        blocked = [call for call in self._calls if not call.wait(_STEP_S)]
        if blocked:  # in the store, whose host is frozen: its thread must not wake up at exit
            self._rendezvous.close()
            blocked[0].wait(_BREAKING_S)

    def _end_all(self, error: PeerError) -> None:
        for method in self._methods:
            if end := method():
                end(error)


_peers: Peers | None = None
_meetings = itertools.count()


def meet(timeout_s: float) -> Peers:
    """Return the peers when all ranks have called this; if one is new, all connect anew."""
    global _peers
    while True:
        if _peers is None or not _peers.is_usable:
            leave()
            _peers = Peers()
            _report_what_is_not_caught()
        if _peers.meet(str(next(_meetings)), timeout_s):
            _peers.is_new = False
            return _peers
        if not _peers.is_new:
            leave()


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


def _ended(rank: int) -> PeerLost:
    return PeerLost(f"rank {rank} has ended: its connections are closed", rank)


def _forget_in_child() -> None:
    """Forget the peers, in a forked child: threads and sentinel belong to the rank."""
    global _peers
    _peers = None


os.register_at_fork(after_in_child=_forget_in_child)


def _is_telling(waited_s: float) -> bool:
    """Tell at 5, 10, 20, 40... seconds."""
    steps = round(waited_s / PATIENCE_S)
    return steps & (steps - 1) == 0
