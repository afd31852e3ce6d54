"""The wall-clock engine with transports made for the test: no torch, no sockets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, bucket_plan, make_policy
from bytelane.errors import TransferFailed, TransferTimeout
from bytelane.job import Job, Layer, Tensor
from bytelane.runtime.sync import Engine, Operations, UnknownPeers
from bytelane.sim import make_planner
from bytelane.testing import EngineContract, ImmediateTransport, ManualTransport


class TestOurs(EngineContract):
    """The engine keeps its contract."""


def engine_of(transport: ManualTransport) -> Engine:
    return Engine.of_plan(bucket_plan([4, 4, 4], 1), transport, ("t0", "t1", "t2"), timeout_s=30.0)


@given(st.permutations(range(8)), st.integers(1, 40))
def test_a_transport_that_reports_at_once_neither_recurses_nor_reorders(
    order: list[int], bucket: int
) -> None:
    transport, plan = ImmediateTransport(), bucket_plan([4] * 8, bucket)
    engine = Engine.of_plan(plan, transport, tuple("abcdefgh"), timeout_s=30.0)
    for tensor in order:
        engine.notify_ready(tensor)
    engine.wait(range(8))
    assert transport.launched == [(k,) for k in range(len(plan.operations))]


def test_a_plan_tells_whose_gradients_must_come_first() -> None:
    operations = Operations.of_plan(bucket_plan([4, 4, 4], 1), "abc")  # tensor 2, then 1, then 0
    assert operations.missing_before([0], {1, 2}) == [1, 2]
    assert operations.missing_before([2], {1, 2}) == [2]
    assert operations.missing_before([2], {1}) == []
    assert operations.missing_before([], {1}) == []
    assert operations.missing_before([0, 1, 2], set()) == []


def test_a_policy_that_decides_as_it_goes_waits_for_its_own_gradients_only() -> None:
    job = Job(
        "j",
        tuple(Layer(f"l{k}", 1.0, 1.0) for k in range(3)),
        tuple(Tensor(f"t{k}", 8, (k,)) for k in range(3)),
    )
    ring = Cluster.star(2, Link(1e6))
    alone = Operations.of_policy(make_policy("bytescheduler", job, ring), job)
    assert alone.missing_before([1], {0, 1, 2}) == [1]
    together = Operations.of_policy(make_policy("units", job, ring), job)
    assert together.missing_before([1], {0, 1, 2}) == [0, 1, 2]
    halves = Operations.of_policy(make_policy("fsdp", job, ring), job)
    assert halves.missing_before([1], {0, 2}) == [0, 2]
    assert halves.in_all_stages(1) == [1, 4]
    assert "t1" in halves.describe(4)


def test_of_a_plan_in_halves_nothing_arrives_before_all_is_ready_and_gathered() -> None:
    job = Job(
        "j",
        tuple(Layer(f"l{k}", 1.0, 1.0) for k in range(2)),
        tuple(Tensor(f"t{k}", 4, (k,)) for k in range(2)),
    )
    plan = make_planner("fsdp", Knobs()).plan(job)
    transport = ManualTransport()
    engine = Engine.of_plan(plan, transport, ("t0", "t1"), timeout_s=30.0)
    engine.notify_ready(1)
    engine.notify_ready(0)
    transport.finish(0)
    assert engine.arrived([1]) == []
    transport.finish(1)
    assert transport.launched == [(0,), (1,), (3,), (2,)]
    transport.finish(3)
    assert engine.arrived([0, 1]) == [0]
    transport.finish(2, error=RuntimeError("connection reset"))
    with pytest.raises(TransferFailed, match="t1 failed: connection reset"):
        engine.wait([1])


def test_whoever_waits_long_is_told_so_until_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Patient(UnknownPeers):
        waited: list[float] = []  # noqa: RUF012

        def still_waiting(self, waited_s: float) -> None:
            self.waited.append(waited_s)

    monkeypatch.setattr("bytelane.runtime.sync.engine.PATIENCE_S", 0.01)
    plan = bucket_plan([4], 4)
    engine = Engine.of_plan(plan, ManualTransport(), ("t",), timeout_s=0.035, peers=Patient())
    engine.notify_ready(0)
    with pytest.raises(TransferTimeout):
        engine.wait([0])
    assert Patient.waited == pytest.approx([0.01, 0.02, 0.03])


def test_ctrl_c_while_waiting_poisons_the_engine() -> None:
    engine = engine_of(ManualTransport())
    engine.notify_ready(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._changed, "wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.wait([2])
    with pytest.raises(TransferFailed, match="interrupted"):
        engine.wait([2])


def interrupt(*_: object) -> bool:
    raise KeyboardInterrupt
