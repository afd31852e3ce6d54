"""The wall-clock engine with transports made for the test: no torch, no sockets."""

import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.core import Done, Plan, bucket_plan
from bytelane.errors import (
    IllegalEvent,
    PlanMismatch,
    TransferFailed,
    TransferTimeout,
)
from bytelane.runtime.engine import Engine


class Manual:
    """Launched operations wait until the test finishes them."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.done: dict[int, Done] = {}

    def start(self, operation: int, done: Done) -> None:
        self.launched.append(operation)
        self.done[operation] = done

    def finish(self, operation: int, error: Exception | None = None) -> None:
        self.done.pop(operation)(operation, error)


class Immediate(Manual):
    """Reports the end inside the call that launches, as a finished future does."""

    def start(self, operation: int, done: Done) -> None:
        self.launched.append(operation)
        done(operation, None)


def engine_of(transport: Manual, plan: Plan | None = None, timeout_s: float = 30.0) -> Engine:
    plan = plan or bucket_plan([4, 4, 4], bucket_bytes=1)
    names = tuple(f"t{i}" for i in range(len(plan.tensor_bytes)))
    return Engine(plan, transport, tensor_names=names, timeout_s=timeout_s)


def test_operations_are_launched_in_plan_order_when_their_tensors_are_ready() -> None:
    transport = Manual()
    engine = engine_of(transport)  # the plan sends tensor 2, then 1, then 0
    engine.notify_ready(0)
    assert transport.launched == []
    engine.notify_ready(2)
    engine.notify_ready(1)
    assert transport.launched == [0, 1, 2]


def test_waiting_returns_when_the_tensor_has_arrived() -> None:
    transport = Manual()
    engine = engine_of(transport)
    engine.notify_ready(2)
    waiter = threading.Thread(target=engine.wait, args=([2],))
    waiter.start()
    assert engine.arrived([2]) == []
    transport.finish(0)
    waiter.join(timeout=10)
    assert not waiter.is_alive()
    assert engine.arrived([2]) == [2]
    assert [transfer.operation for transfer in engine.transfers] == [0]


@given(st.permutations(range(8)), st.integers(1, 40))
def test_a_transport_that_reports_at_once_neither_recurses_nor_reorders(
    order: list[int], bucket: int
) -> None:
    transport = Immediate()
    engine = engine_of(transport, bucket_plan([4] * 8, bucket))
    for tensor in order:
        engine.notify_ready(tensor)
    engine.wait(range(8))
    assert transport.launched == list(range(len(engine.plan.operations)))


def test_a_failed_transfer_reaches_every_waiter_by_name() -> None:
    transport = Manual()
    engine = engine_of(transport)
    engine.notify_ready(2)
    transport.finish(0, RuntimeError("connection reset"))
    with pytest.raises(TransferFailed, match=r"t2 failed: connection reset"):
        engine.wait([2])
    with pytest.raises(TransferFailed):
        engine.notify_ready(1)
    with pytest.raises(TransferFailed):
        engine.begin_iteration()


def test_an_error_of_our_own_is_passed_on_as_it_is() -> None:
    transport = Manual()
    engine = engine_of(transport)
    engine.notify_ready(2)
    transport.finish(0, PlanMismatch("met another operation"))
    with pytest.raises(PlanMismatch, match="met another operation"):
        engine.wait([2])


def test_a_transport_that_cannot_launch_poisons_the_engine() -> None:
    class Broken(Manual):
        def start(self, operation: int, done: Done) -> None:
            raise OSError("no route")

    engine = engine_of(Broken())
    with pytest.raises(OSError, match="no route"):
        engine.notify_ready(2)
    with pytest.raises(TransferFailed, match="could not launch"):
        engine.wait([2])


def test_what_does_not_arrive_in_time_is_an_error_that_names_the_tensor() -> None:
    engine = engine_of(Manual(), timeout_s=0.01)
    engine.notify_ready(2)
    engine.notify_ready(1)
    with pytest.raises(TransferTimeout, match=r"t1, t2 did not arrive within 0.01 s"):
        engine.wait([1, 2])


def test_it_is_told_whose_gradients_must_come_first() -> None:
    engine = engine_of(Manual())  # the plan sends tensor 2, then 1, then 0
    engine.notify_ready(0)
    assert engine.unready() == [1, 2]
    assert engine.unready_before([0]) == [1, 2]
    assert engine.unready_before([2]) == [2]
    engine.notify_ready(2)
    assert engine.unready_before([2]) == []
    assert engine.unready_before([]) == []
    engine.notify_ready(1)
    assert engine.unready() == engine.unready_before([0, 1, 2]) == []


def test_of_a_plan_in_halves_nothing_arrives_before_all_is_ready_and_gathered() -> None:
    plan = msgspec.structs.replace(bucket_plan([4, 4], bucket_bytes=1), gather_order=(1, 0))
    transport = Manual()
    engine = engine_of(transport, plan)  # tensor 1, then 0; gathered 0, then 1
    engine.notify_ready(1)
    assert engine.unready_before([1]) == [0]
    engine.notify_ready(0)
    transport.finish(0)
    assert engine.arrived([1]) == []
    transport.finish(1)
    assert transport.launched == [0, 1, 3, 2]
    transport.finish(3)
    assert engine.arrived([0, 1]) == [0]
    transport.finish(2, RuntimeError("connection reset"))
    with pytest.raises(TransferFailed, match="t1 failed: connection reset"):
        engine.wait([1])


def test_whoever_waits_long_is_told_so_until_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bytelane.runtime.engine.engine.PATIENCE_S", 0.01)
    waited: list[float] = []
    plan = bucket_plan([4], 4)
    engine = Engine(
        plan, Manual(), tensor_names=("t",), timeout_s=0.035, still_waiting=waited.append
    )
    engine.notify_ready(0)
    with pytest.raises(TransferTimeout):
        engine.wait([0])
    assert waited == pytest.approx([0.01, 0.02, 0.03])


def test_ctrl_c_while_waiting_poisons_the_engine() -> None:
    engine = engine_of(Manual())
    engine.notify_ready(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._changed, "wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.wait([2])
    with pytest.raises(TransferFailed, match="interrupted"):
        engine.wait([2])


def interrupt(*_: object) -> bool:
    raise KeyboardInterrupt


def test_an_iteration_begins_only_when_nothing_is_in_flight() -> None:
    transport = Manual()
    engine = engine_of(transport)
    engine.notify_ready(2)
    with pytest.raises(PlanMismatch, match="still in flight"):
        engine.begin_iteration()
    transport.finish(0)
    engine.begin_iteration()
    assert 2 in engine.unready()
    assert engine.transfers == []


def test_an_impossible_event_is_refused() -> None:
    engine = engine_of(Manual())
    engine.notify_ready(2)
    with pytest.raises(IllegalEvent):
        engine.notify_ready(2)
