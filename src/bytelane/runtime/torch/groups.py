"""Process groups of our own: an operation of ours never meets a collective of the user's."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist

from bytelane.runtime.torch.peers import Peers
from bytelane.runtime.torch.sockets import Sockets

Measured = TypeVar("Measured")

# What the user is done with, until no operation of theirs holds it any more.
_dropped: list[dist.ProcessGroup] = []
# The list, the variable of the loop, the argument.
_HELD_BY_US = 3


class Groups:
    """Those of one prepared model: one to agree on, and one a lane. All ranks open them alike."""

    def __init__(self, peers: Peers, timeout_s: float) -> None:
        self.peers = peers
        self._timeout_s = timeout_s
        self._page = peers.page
        self._sockets = Sockets()
        self._lanes: list[dist.ProcessGroup] = []
        self.agreeing = self._open("agreeing")
        self.lanes(1)

    def lanes(self, count: int) -> Sequence[dist.ProcessGroup]:
        """Return so many lanes; those that are not there yet are opened."""
        while len(self._lanes) < count:
            self._lanes.append(self._open(f"lane {len(self._lanes)}"))
        return self._lanes[:count]

    def measure(self, probe: Callable[[dist.ProcessGroup], Measured]) -> Measured:
        """Return what all ranks measure together on the first lane."""
        with self._breaking():
            return self.peers.do_together(
                lambda: probe(self._lanes[0]), self._timeout_s, "the network was not measured"
            )

    def _open(self, name: str) -> dist.ProcessGroup:
        _close_what_is_free()
        with self._breaking(), self._sockets.collecting():
            return self.peers.open_group(f"{self._page}/{name}", self._timeout_s)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """After an error let nothing wait any longer for the others."""
        try:
            yield
        except BaseException:
            self.break_all()
            raise

    def break_all(self) -> None:
        """Make everything fail that is in flight, at once; callable from any thread."""
        self._sockets.break_all()

    def drop(self) -> None:
        """Let go of them, although other ranks may still need what is in flight."""
        _dropped.extend([*self._lanes, self.agreeing])


def _close_what_is_free() -> None:
    # The end of an operation is told in a thread of its group. If the last to hold the group were
    # that thread, it would have to wait for its own end, and the process would be aborted.
    _dropped[:] = [group for group in _dropped if sys.getrefcount(group) > _HELD_BY_US]
