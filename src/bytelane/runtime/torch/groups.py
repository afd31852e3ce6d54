"""Process groups of Bytelane's own, whose collectives never match one of the user's."""

import atexit
import ctypes
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from bytelane.runtime.torch.peers import Peers
from bytelane.runtime.torch.sockets import Sockets

Measured = TypeVar("Measured")

# Groups that are no longer used, until none of their operations holds them any more.
_dropped: list[dist.ProcessGroup] = []
# References: the list, the variable of the loop, the argument.
_HELD_BY_US = 3

# At exit: how often, and how long after each other, gloo's threads must be found at rest.
_LOOKS = 5
_BETWEEN_LOOKS_S = 0.01
_MOST_LOOKS = 100


class Groups:
    """The groups of one prepared model: one for control, one per lane. All ranks open the same."""

    def __init__(self, peers: Peers, timeout_s: float) -> None:
        self.peers = peers
        self._timeout_s = timeout_s
        self._page = peers.page
        self._sockets = Sockets()
        self._opened: list[dist.ProcessGroup] = []
        self._lanes: list[dist.ProcessGroup] = []
        rest_at_exit()
        self.agreeing = self._open("agreeing")
        self.lanes(1)

    def lanes(self, count: int) -> Sequence[dist.ProcessGroup]:
        """Return the groups of this many lanes; missing ones are opened."""
        while len(self._lanes) < count:
            self._lanes.append(self._open(f"lane {len(self._lanes)}"))
        return self._lanes[:count]

    def measure(self, probe: Callable[[dist.ProcessGroup], Measured]) -> Measured:
        """Let all ranks measure together on the first lane; return the result."""
        with self.breaking():
            return self.peers.do_together(
                lambda: probe(self._lanes[0]), self._timeout_s, "the network was not measured"
            )

    def _open(self, name: str) -> dist.ProcessGroup:
        _close_what_is_free()
        with self.breaking(), self._sockets.collecting():
            self._opened.append(self.peers.open_group(f"{self._page}/{name}", self._timeout_s))
        return self._opened[-1]

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """On an error, break all groups, so that no thread waits for the others any longer.

        The others are told: to them, a rank that leaves now has done its part of all operations.
        """
        try:
            yield
        except BaseException as error:
            self.break_all()
            self.peers.give_up(error)
            raise

    def break_all(self) -> None:
        """Make all operations in flight fail at once; callable from any thread."""
        self._sockets.break_all()
        for group in self._opened:
            _never_destroy(group)

    def drop(self) -> None:
        """Stop using the groups, but keep them while other ranks may need operations in flight."""
        _dropped.extend(self._opened)


def _never_destroy(group: dist.ProcessGroup) -> None:
    """Leak a broken group: if gloo missed that a peer has left, its destructor waits for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _close_what_is_free() -> None:
    # A thread of the group reports the end of an operation. If that thread held the last reference
    # to the group, it would have to wait for its own end, and the process would be aborted.
    _dropped[:] = [group for group in _dropped if sys.getrefcount(group) > _HELD_BY_US]


@functools.cache
def rest_at_exit() -> None:
    """Register, once, an exit handler that waits until gloo's threads are done with Python.

    A thread of gloo's reports the end of an operation. If it needs the interpreter when that is
    gone, it is thrown out of the middle of C++, and the process is aborted.
    """
    atexit.register(_rest)


def _rest() -> None:
    """Give the interpreter away until no thread runs, or wants to, at several looks in a row."""
    quiet = 0
    for _ in range(_MOST_LOOKS):
        time.sleep(_BETWEEN_LOOKS_S)
        quiet = 0 if _others_run() else quiet + 1
        if quiet == _LOOKS:
            return


def _others_run() -> bool:
    me = threading.get_native_id()
    for thread in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # it has ended
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(thread.name) != me:
                return True
    return False
