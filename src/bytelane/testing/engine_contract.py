"""Contract tests of an engine: it launches as the decider says, and reports arrivals."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from bytelane.core import Event, Plan, Scheduler, Start, bucket_plan
from bytelane.errors import (
    IllegalEvent,
    OutOfMemory,
    PlanMismatch,
    TransferFailed,
    TransferTimeout,
)
from bytelane.runtime.sync import Decider, Done, Engine, Message, Operations
from bytelane.testing.transports import ImmediateTransport, ManualTransport

NAMES = ("t0", "t1", "t2")
SOON_S = 10.0


class Joining:
    """A decider that sends all ready operations in one message."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._missing = {0, 1, 2}

    def reset(self) -> None:
        self._missing = {0, 1, 2}

    def notify_all_ready(self, tensors: Any, now: float) -> list[Start]:
        return [Start(t, now, joined=k > 0) for k, t in enumerate(tensors)]

    def notify_finish(self, operation: int, now: float) -> list[Start]:
        self._missing.discard(operation)
        return []

    def is_synchronised(self, tensor: int) -> bool:
        return tensor not in self._missing


class EngineContract:
    """The rules that the synchroniser relies on. Subclass it to test an engine of your own."""

    make: Callable[..., Engine] = staticmethod(Engine)

    def engine(
        self,
        transport: ManualTransport,
        plan: Plan | None = None,
        decider: Decider | None = None,
        timeout_s: float = 30.0,
    ) -> Engine:
        plan = plan or bucket_plan([4, 4, 4], bucket_bytes=1)  # tensor 2, then 1, then 0
        names = tuple(f"t{i}" for i in range(len(plan.tensor_bytes)))
        operations = Operations.of_plan(plan, names)
        decider = decider or Scheduler.of_plan(plan)
        return self.make(decider, operations, transport, timeout_s=timeout_s)

    def test_operations_are_launched_as_decided(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(0)
        assert transport.launched == []
        engine.notify_ready(2)
        engine.notify_ready(1)
        assert transport.launched == [(0,), (1,), (2,)]
        assert engine.launched == [0, 1, 2]

    def test_what_is_joined_travels_in_one_message(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport, decider=Joining())
        engine.notify_ready(1, 0)
        engine.notify_ready(2)
        assert transport.launched == [(1, 0), (2,)]
        transport.finish(1, 0)
        assert engine.arrived([0, 1, 2]) == [0, 1]
        assert [transfer.operation for transfer in engine.transfers] == [1, 0]

    def test_waiting_ends_when_the_tensor_has_arrived(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(2)
        waiter = threading.Thread(target=engine.wait, args=([2],))
        waiter.start()
        assert engine.arrived([2]) == []
        transport.finish(0)
        waiter.join(SOON_S)
        assert not waiter.is_alive()
        assert engine.arrived([2]) == [2]

    def test_waiting_for_the_launch_does_not_wait_for_the_end(self) -> None:
        engine = self.engine(ManualTransport())
        engine.notify_ready(2)
        engine.wait_for_launch([2])
        assert engine.arrived([2]) == []

    def test_a_message_that_is_over_at_once_neither_recurses_nor_reorders(self) -> None:
        transport = ImmediateTransport()
        engine = self.engine(transport, bucket_plan([4] * 200, 4))
        for tensor in range(200):
            engine.notify_ready(tensor)
        engine.wait(range(200))
        assert transport.launched == [(operation,) for operation in range(200)]

    def test_a_failed_transfer_reaches_every_waiter_by_name(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(2)
        transport.finish(0, error=RuntimeError("connection reset"))
        with pytest.raises(TransferFailed, match=r"t2 failed: connection reset"):
            engine.wait([2])
        with pytest.raises(TransferFailed):
            engine.notify_ready(1)
        with pytest.raises(TransferFailed):
            engine.begin_iteration()

    def test_a_rank_without_memory_blames_no_other_rank(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(2)
        transport.finish(0, error=MemoryError("no room"))
        with pytest.raises(OutOfMemory, match=r"t2 failed: no room"):
            engine.wait([2])

    def test_an_error_of_our_own_is_passed_on_as_it_is(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(2)
        transport.finish(0, error=PlanMismatch("met another operation"))
        with pytest.raises(PlanMismatch, match="met another operation"):
            engine.wait([2])

    def test_a_transport_that_cannot_launch_poisons_the_engine(self) -> None:
        class Broken(ManualTransport):
            def start(self, message: Message, done: Done) -> None:
                raise OSError("no route")

        engine = self.engine(Broken())
        with pytest.raises(OSError, match="no route"):
            engine.notify_ready(2)
        with pytest.raises(TransferFailed, match="could not launch"):
            engine.wait([2])

    def test_what_does_not_arrive_in_time_is_an_error_that_names_the_tensor(self) -> None:
        engine = self.engine(ManualTransport(), timeout_s=0.01)
        engine.notify_ready(2)
        engine.notify_ready(1)
        with pytest.raises(TransferTimeout, match=r"t1, t2 did not arrive within 0.01 s"):
            engine.wait([1, 2])

    def test_an_iteration_begins_only_when_nothing_is_in_flight(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(2)
        with pytest.raises(PlanMismatch, match="still in flight"):
            engine.begin_iteration()
        transport.finish(0)
        engine.begin_iteration()
        assert engine.arrived([2]) == []
        assert engine.transfers == []

    def test_an_impossible_event_is_refused(self) -> None:
        engine = self.engine(ManualTransport())
        engine.notify_ready(2)
        with pytest.raises(IllegalEvent):
            engine.notify_ready(2)

    def test_draining_waits_for_what_is_in_flight_well_or_not(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(2)
        assert not engine.drain(0.0)
        transport.finish(0, error=RuntimeError("connection reset"))
        assert engine.drain(SOON_S)
