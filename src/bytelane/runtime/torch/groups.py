"""Process groups of our own: an operation of ours never meets a collective of the user's."""

import contextlib
import sys

import torch.distributed as dist

# What the user is done with, until no operation of theirs holds it any more.
_dropped: list[dist.ProcessGroup] = []
# The list, the variable of the loop, the argument.
_HELD_BY_US = 3


def open_group() -> dist.ProcessGroup:
    """Return a new group; all ranks call this. What was dropped before is closed."""
    _close_what_is_free()
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    group.barrier().wait()  # opens its sockets
    return group


def drop(*groups: dist.ProcessGroup) -> None:
    """Let go of groups, although other ranks may still need what is in flight on them."""
    for group in groups:
        # The user may have destroyed all groups already.
        with contextlib.suppress(Exception):
            dist.destroy_process_group(group)
    _dropped.extend(groups)


def _close_what_is_free() -> None:
    # The end of an operation is told in a thread of its group. If the last to hold the group were
    # that thread, it would have to wait for its own end, and the process would be aborted.
    _dropped[:] = [group for group in _dropped if sys.getrefcount(group) > _HELD_BY_US]
