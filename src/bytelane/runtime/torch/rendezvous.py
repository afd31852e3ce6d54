"""Rendezvous: ranks exchange addresses and open process groups through torch's store.

It exists since ``init_process_group``. Everything here may block while its host is frozen, so it is
called within a :class:`~.background_call.BackgroundCall`.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from bytelane.foreign.torch import default_store, group_on_gloo
from bytelane.runtime.torch.sockets import Sockets

_POLL_S = 0.02
# The more ranks are awaited, the more rarely each polls: all of them poll one host.
_POLL_EACH_S = 0.01
# For the TCP connections that gloo's threads make when all ranks are in the store.
_CONNECT_S = 30.0
# Gloo's own timeout. Ours are shorter, and name the rank that is waited for.
_OPERATIONS_S = 1800.0

Found = Callable[[int, bytes], None]


class Rendezvous:
    """One rank's access to the store, by a connection of its own: a call that blocks holds it."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._default = default_store()
        self._store: Store | None = None
        self._sockets = Sockets()

    def exchange(self, page: str, mine: bytes, found: Found, given_up: threading.Event) -> None:
        """Publish this rank's bytes, and call ``found`` with each other rank's as they appear."""
        store = self._open()
        store.set(f"{page}/{self._rank}", mine)  # type: ignore[arg-type]
        missing = [rank for rank in range(self._size) if rank != self._rank]
        while missing and not given_up.is_set():
            here = [rank for rank in missing if store.check([f"{page}/{rank}"])]
            for rank in here:
                found(rank, store.get(f"{page}/{rank}"))
            missing = [rank for rank in missing if rank not in here]
            if missing:
                given_up.wait(_POLL_S + _POLL_EACH_S * len(missing))

    def open_group(self, page: str, given_up: threading.Event) -> dist.ProcessGroup:
        """Connect all ranks once more; all of them call this, for the same page.

        Torch does not know this group: it has no name, and outlives ``destroy_process_group``.
        """
        store = _Watched(PrefixStore(page, self._open()), given_up)
        limit = timedelta(seconds=_CONNECT_S)
        gloo = dist.ProcessGroupGloo(store, self._rank, self._size, limit)
        group = group_on_gloo(store, gloo)
        group.set_timeout(timedelta(seconds=_OPERATIONS_S))
        group.barrier().wait()  # opens its sockets
        return group

    def close(self) -> None:
        """Make a blocked call fail."""
        self._sockets.break_all()

    def _open(self) -> Store:
        if self._store is None:
            with self._sockets.collecting():
                try:
                    store = self._default.clone()  # type: ignore[attr-defined]
                except RuntimeError:  # a store of the user's own kind
                    store = self._default
            self._store = PrefixStore("bytelane", store)
        return self._store


class _Watched(Store):
    """A store whose waits end when the caller has given up; gloo's own would last to the end."""

    def __init__(self, store: Store, given_up: threading.Event) -> None:
        super().__init__()
        self._store = store
        self._given_up = given_up

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        while not self._store.check(keys):
            if self._given_up.wait(_POLL_S):
                raise RuntimeError("this rank has given up waiting for the group to open")


class Links:
    """The connections of the user's own process group, which end when a rank does.

    They exist since ``init_process_group``, so they show deaths before the sentinels do. Gloo
    refuses to receive on a broken connection. On a sound one that costs a few bytes, for a tag that
    no rank sends.
    """

    _TAG = 0x62_79_74_65
    _EVERY_S = 0.5
    _OF_THE_TIME = 0.05

    def __init__(self) -> None:
        self._group = dist.group.WORLD
        self._next_s = 0.0

    def broken(self, waited_s: float) -> int | None:
        """Return a rank whose connection is broken; looks more rarely the longer the wait."""
        if time.monotonic() < self._next_s or self._group is not dist.group.WORLD:
            return None
        self._next_s = time.monotonic() + max(self._EVERY_S, self._OF_THE_TIME * waited_s)
        if not self._is_gloo():
            return None
        assert self._group is not None
        for rank in range(self._group.size()):
            if rank != self._group.rank():
                try:
                    self._group.recv([torch.zeros(1)], rank, self._TAG)
                except RuntimeError:
                    return rank
        return None

    def _is_gloo(self) -> bool:
        return "cpu:gloo" in dist.get_backend_config(self._group).split(",")
