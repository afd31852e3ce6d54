"""Process groups of our own: an operation of ours never meets a collective of the user's."""

import contextlib
import sys
from collections.abc import Sequence

import torch.distributed as dist

from bytelane.runtime.torch.sockets import Sockets

# What the user is done with, until no operation of theirs holds it any more.
_dropped: list[dist.ProcessGroup] = []
# The list, the variable of the loop, the argument.
_HELD_BY_US = 3


class Groups:
    """Those of one prepared model: one to agree on, and one a lane. All ranks open them alike."""

    def __init__(self) -> None:
        self._sockets = Sockets()
        self._lanes: list[dist.ProcessGroup] = []
        with self._sockets.collecting():
            self._lanes.append(_open_group())
            self.agreeing = _open_group()

    def lanes(self, count: int) -> Sequence[dist.ProcessGroup]:
        """Return so many lanes; those that are not there yet are opened."""
        with self._sockets.collecting():
            while len(self._lanes) < count:
                self._lanes.append(_open_group())
        return self._lanes[:count]

    def break_all(self) -> None:
        """Make everything fail that is in flight, at once; callable from any thread."""
        self._sockets.break_all()

    def drop(self) -> None:
        """Let go of them, although other ranks may still need what is in flight."""
        for group in (*self._lanes, self.agreeing):
            # The user may have destroyed all groups already.
            with contextlib.suppress(Exception):
                dist.destroy_process_group(group)
            _dropped.append(group)


def _open_group() -> dist.ProcessGroup:
    _close_what_is_free()
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    group.barrier().wait()  # opens its sockets
    return group


def _close_what_is_free() -> None:
    # The end of an operation is told in a thread of its group. If the last to hold the group were
    # that thread, it would have to wait for its own end, and the process would be aborted.
    _dropped[:] = [group for group in _dropped if sys.getrefcount(group) > _HELD_BY_US]
