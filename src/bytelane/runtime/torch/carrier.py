"""What carries tensors between ranks: process groups of gloo's, or parameter servers."""

from collections.abc import Callable
from typing import Any, Protocol

import torch.distributed as dist

from bytelane.cluster import Link, Sync
from bytelane.core import Element, Plan, bucket_plan
from bytelane.errors import PlanMismatch
from bytelane.runtime.sync import Engine, Transport
from bytelane.runtime.torch.control import Control, GlooControl
from bytelane.runtime.torch.groups import Groups
from bytelane.runtime.torch.parameters import TrainedParameters
from bytelane.runtime.torch.peers import Peers
from bytelane.runtime.torch.ring_transport import RingTransport
from bytelane.runtime.torch.transport import AllReduceTransport, GradientTransport

# Gradients in flight are in memory twice, so buckets are not as large as DDP's.
FIRST_BUCKET_BYTES = 2**22


class Carrier(Protocol):
    """The connections of one prepared model; all ranks open the same."""

    @property
    def sync(self) -> Sync: ...

    @property
    def peers(self) -> Peers: ...

    @property
    def control(self) -> Control: ...

    def first_plan(self, trained: TrainedParameters, version: int) -> Plan:
        """Return a plan for a model of which nothing is measured yet."""

    def fit(self, plan: Plan, trained: TrainedParameters) -> Plan:
        """Return the plan with operations that can be carried: whole elements of one kind."""

    def carry(self, plan: Plan, trained: TrainedParameters) -> Transport:
        """Return the transport of a plan's operations."""

    def make_engine(
        self, plan: Plan, transport: Transport, names: tuple[str, ...], **settings: Any
    ) -> Engine:
        """Return the engine that launches a plan's operations."""

    def measure(self, probe: Callable[[dist.ProcessGroup], Link]) -> Link:
        """Let all ranks measure the network together."""

    def break_all(self) -> None:
        """Make all operations in flight fail at once; callable from any thread."""

    def drop(self) -> None:
        """Stop using the connections, but keep them while other ranks may need them."""

    def leave(self) -> None:
        """Leave in order, at exit, when nothing is in flight."""


class GlooCarrier:
    """All-reduces, or our own ring in two halves, on process groups of gloo's."""

    sync: Sync = "allreduce"

    def __init__(self, groups: Groups, timeout_s: float) -> None:
        self.peers = groups.peers
        self.control = GlooControl(groups, timeout_s)
        self._groups = groups

    def first_plan(self, trained: TrainedParameters, version: int) -> Plan:
        buckets = bucket_plan(trained.tensor_bytes, FIRST_BUCKET_BYTES, version)
        return self.fit(buckets.cut(FIRST_BUCKET_BYTES), trained)

    def fit(self, plan: Plan, trained: TrainedParameters) -> Plan:
        return require_tensors(plan, trained).fit_to(elements_of(trained))

    def carry(self, plan: Plan, trained: TrainedParameters) -> Transport:
        return carrier_of(plan)(
            plan,
            trained.dtypes,
            self._groups.lanes(len(plan.lanes)),
            trained.names,
            launched=self.peers.count,
        )

    def make_engine(
        self, plan: Plan, transport: Transport, names: tuple[str, ...], **settings: Any
    ) -> Engine:
        return Engine.of_plan(plan, transport, names, **settings)

    def measure(self, probe: Callable[[dist.ProcessGroup], Link]) -> Link:
        return self._groups.measure(probe)

    def break_all(self) -> None:
        self._groups.break_all()

    def drop(self) -> None:
        self._groups.drop()

    def leave(self) -> None:
        pass  # the process closes its sockets at its end


def carrier_of(plan: Plan) -> type[GradientTransport]:
    """Return what carries a plan's operations: all-reduces, or our own ring in two halves."""
    in_one = plan.stages[0].collective == "all-reduce"
    return AllReduceTransport if in_one else RingTransport


def require_tensors(plan: Plan, trained: TrainedParameters) -> Plan:
    """Return a plan that is made for these tensors."""
    if plan.tensor_bytes != trained.tensor_bytes:
        raise PlanMismatch(
            "the planner has made a plan for other tensors than those that are trained"
        )
    return plan


def elements_of(trained: TrainedParameters) -> list[Element]:
    """Return what each trained tensor consists of."""
    return [Element(str(dtype), dtype.itemsize) for dtype in trained.dtypes]
