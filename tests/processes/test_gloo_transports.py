"""The all-reduces of gloo keep the contract of a transport."""

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bytelane.core import Plan
from bytelane.runtime.sync import Transport
from bytelane.runtime.torch.carrier import carrier_of
from bytelane.testing import TransportContract
from bytelane.testing.transport_contract import NAMES, SIZES

# A group that ends in one of its own threads would have to wait for itself.
_groups: list[dist.ProcessGroup] = []


class TestAllReduce(TransportContract):
    """One all-reduce per operation; ranks have process groups of their own over loopback."""

    @pytest.fixture(autouse=True)
    def _stores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        self._lock = threading.Lock()
        self._meetings: dict[int, int] = {}
        self._store = dist.HashStore()

    def connect(self, plan: Plan, rank: int) -> Transport:
        with self._lock:  # all ranks connect in the same order
            meeting = self._meetings[rank] = self._meetings.get(rank, 0) + 1
        store = dist.PrefixStore(f"{type(self).__name__}/{meeting}", self._store)
        group = dist.ProcessGroup(store, rank, self.world)
        gloo = dist.ProcessGroupGloo(store, rank, self.world)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        _groups.append(group)
        return carrier_of(plan)(plan, [torch.float32] * len(SIZES), [group], NAMES)

    def value(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array)
