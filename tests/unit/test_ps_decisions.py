"""What a worker pushes and pulls next: as the policy says, with a window per server."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bytelane.cluster import Cluster, Link
from bytelane.core import (
    CreditWindow,
    Element,
    Plan,
    Policy,
    Scheduler,
    Start,
    bucket_plan,
    choose_knobs,
    make_policy,
    policies_for,
    policy_entry,
)
from bytelane.core.knobs import Knobs
from bytelane.errors import IllegalEvent, InputError, PlanMismatch
from bytelane.job import Job, Layer, Tensor
from bytelane.runtime.ps.decisions import ServerDecisions
from bytelane.runtime.ps.shards import CHUNK_BYTES, Shards
from bytelane.runtime.ps.slices import Slices
from bytelane.runtime.sync import Decider, Engine
from bytelane.testing import EngineContract, ImmediateTransport, ManualTransport
from strategies import jobs

CLUSTER = Cluster.star(2, Link(64.0), servers=2)
BYTE = Element("int8", 1)


def job_of(*tensor_bytes: int) -> Job:
    layers = tuple(Layer(f"l{i}", 0.125, 0.25) for i in range(len(tensor_bytes)))
    return Job("job", layers, tuple(Tensor(f"t{i}", n, (i,)) for i, n in enumerate(tensor_bytes)))


def decisions_of(policy: Policy, job: Job, servers: int) -> tuple[ServerDecisions, Slices]:
    sizes = [tensor.bytes for tensor in job.tensors]
    shards = Shards.spread(sizes, servers, CHUNK_BYTES)
    slices = Slices.of(policy, job, shards, [BYTE] * len(sizes))
    return ServerDecisions(policy, job, slices), slices


@st.composite
def policies(draw: st.DrawFn, job: Job) -> Policy:
    """Draw any policy for servers, with its default knobs or small ones."""
    name = draw(st.sampled_from(policies_for("ps")))
    small = {
        knob.key: min(max(draw(st.integers(1, 48)), knob.least), knob.most)
        for knob in policy_entry(name).knobs
    }
    knobs = choose_knobs(name, **small) if small and draw(st.booleans()) else None
    return make_policy(name, job, CLUSTER, knobs)


def drive(
    data: st.DataObject,
    tensors: int,
    ready: Callable[[list[int]], list[Start]],
    finish: Callable[[int], list[Start]],
) -> list[Start]:
    """Tell in any order that tensors are ready and operations are over, to the end."""
    waiting = [*range(tensors)]
    started: list[Start] = []
    in_flight: list[int] = []
    while waiting or in_flight:
        if waiting and (not in_flight or data.draw(st.booleans())):
            count = data.draw(st.integers(1, len(waiting)))
            now = [waiting.pop(data.draw(st.integers(0, len(waiting) - 1))) for _ in range(count)]
            found = ready(now)
        else:
            found = finish(in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1))))
        started += found
        in_flight += [start.operation for start in found]
    return started


class InOneQueue:
    """What ``Scheduler.of_policy`` decides, as a server would let it: pulls have no window."""

    def __init__(self, policy: Policy, job: Job) -> None:
        push, pull = policy.stages
        unlimited = replace(policy, stages=(push, replace(pull, window=CreditWindow())))
        self.scheduler = Scheduler.of_policy(unlimited, job)
        self._after_backward, self._tensors = policy.after_backward, len(job.tensors)
        self._ready: list[int] = []

    def ready(self, tensors: list[int]) -> list[Start]:
        self._ready += tensors
        if self._after_backward and len(self._ready) < self._tensors:
            return []
        known = self._ready if self._after_backward else tensors
        return self.scheduler.notify_all_ready(known, 0.0)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_with_one_server_it_starts_what_the_scheduler_starts(data: st.DataObject) -> None:
    job = data.draw(jobs())
    policy = data.draw(policies(job))
    decisions, _ = decisions_of(policy, job, servers=1)
    for _ in range(2):  # two rounds
        reference = InOneQueue(policy, job)

        def ready(tensors: list[int], reference: InOneQueue = reference) -> list[Start]:
            found = decisions.notify_all_ready(tensors, 0.0)
            assert found == reference.ready(tensors)
            return found

        def finish(operation: int, reference: InOneQueue = reference) -> list[Start]:
            found = decisions.notify_finish(operation, 0.0)
            assert found == reference.scheduler.notify_finish(operation, 0.0)
            arrived = map(reference.scheduler.is_synchronised, range(len(job.tensors)))
            assert [*map(decisions.is_synchronised, range(len(job.tensors)))] == [*arrived]
            return found

        drive(data, len(job.tensors), ready, finish)
        decisions.reset()


big_jobs = st.lists(st.integers(1, 4 * CHUNK_BYTES), min_size=1, max_size=5).map(
    lambda sizes: job_of(*sizes)
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_on_many_servers_every_slice_is_pushed_then_pulled_once(data: st.DataObject) -> None:
    job = data.draw(big_jobs)
    name = data.draw(st.sampled_from(policies_for("ps")))
    size = data.draw(st.integers(CHUNK_BYTES // 4, 2 * CHUNK_BYTES))
    has_parts = "partition" in [knob.name for knob in policy_entry(name).knobs]
    policy = make_policy(name, job, CLUSTER, Knobs(size, size) if has_parts else None)
    decisions, slices = decisions_of(policy, job, data.draw(st.integers(1, 4)))
    total = len(slices)
    over: set[int] = set()
    told: set[int] = set()

    def check(starts: list[Start]) -> list[Start]:
        for start in starts:
            if start.operation < total:
                assert slices.all[start.operation].tensors <= told
                assert not policy.after_backward or len(told) == len(job.tensors)
            else:
                assert start.operation - total in over
                assert not policy.stages[1].after_all or over >= set(range(total))
        return starts

    def ready(tensors: list[int]) -> list[Start]:
        told.update(tensors)
        return check(decisions.notify_all_ready(tensors, 0.0))

    def finish(operation: int) -> list[Start]:
        over.add(operation)
        starts = check(decisions.notify_finish(operation, 0.0))
        for tensor in range(len(job.tensors)):
            own = {total + k for k, one in enumerate(slices.all) if tensor in one.tensors}
            assert decisions.is_synchronised(tensor) == (own <= over)
        return starts

    started = drive(data, len(job.tensors), ready, finish)
    assert sorted(start.operation for start in started) == [*range(2 * total)]
    assert len(decisions.events) == len(job.tensors) + 2 * total


def test_every_server_has_a_window_of_its_own() -> None:
    job = job_of(4 * CHUNK_BYTES)
    policy = make_policy("bytescheduler", job, CLUSTER, Knobs(CHUNK_BYTES, CHUNK_BYTES))
    decisions, slices = decisions_of(policy, job, servers=2)
    assert [one.server for one in slices.all] == [0, 0, 1, 1]
    assert [start.operation for start in decisions.notify_all_ready([0], 0.0)] == [0, 2]
    # The push of server 1 is taken: its pull, and its next push. Server 0 is not asked.
    assert [start.operation for start in decisions.notify_finish(2, 1.0)] == [3, 6]


def test_what_forward_needs_first_is_pushed_first_to_every_server() -> None:
    job = job_of(2 * CHUNK_BYTES, 2 * CHUNK_BYTES)
    policy = make_policy("p3", job, CLUSTER, Knobs(CHUNK_BYTES, 1))
    decisions, slices = decisions_of(policy, job, servers=2)
    busy = decisions.notify_all_ready([1], 0.0)
    assert decisions.notify_all_ready([0], 0.0) == []
    for start in busy:
        pushes = [
            slices.all[found.operation].tensors
            for found in decisions.notify_finish(start.operation, 1.0)
            if found.operation < len(slices)
        ]
        assert pushes == [{0}]


def test_pulls_after_all_pushes_wait_for_every_server() -> None:
    job = job_of(CHUNK_BYTES, CHUNK_BYTES)
    decisions, slices = decisions_of(make_policy("tic", job, CLUSTER), job, servers=2)
    assert len(slices) == 2
    decisions.notify_all_ready([0, 1], 0.0)
    assert decisions.notify_finish(0, 1.0) == []
    assert [start.operation for start in decisions.notify_finish(1, 2.0)] == [2, 3]


def test_a_refused_event_changes_nothing() -> None:
    job = job_of(8, 8)
    decisions, _ = decisions_of(make_policy("fifo", job, CLUSTER), job, servers=1)
    for tensors in ((0, 0), (0, 2), (-1,)):
        with pytest.raises(IllegalEvent):
            decisions.notify_all_ready(tensors, 0.0)
    for operation in (-1, 0, 3, 4):
        with pytest.raises(IllegalEvent):
            decisions.notify_finish(operation, 0.0)
    assert decisions.events == []
    assert [start.operation for start in decisions.notify_all_ready([0], 0.0)] == [0]
    with pytest.raises(IllegalEvent, match="ready already"):
        decisions.notify_all_ready([0], 0.0)


def test_a_policy_that_does_not_push_is_refused() -> None:
    job = job_of(8)
    policy = make_policy("fifo", job, Cluster.star(2, Link(8.0)))
    slices = Slices.of(policy, job, Shards.spread([8], 1), [BYTE])
    with pytest.raises(InputError, match="not made for servers"):
        ServerDecisions(policy, job, slices)


class TestEngineOfServers(EngineContract):
    """The contract of an engine, where it does not rely on one stage and a fixed order."""

    def engine(
        self,
        transport: ManualTransport,
        plan: Plan | None = None,
        decider: Decider | None = None,
        timeout_s: float = 30.0,
    ) -> Engine:
        plan = plan or bucket_plan([4, 4, 4], bucket_bytes=1)
        job = job_of(*plan.tensor_bytes)
        policy = make_policy("fifo", job, CLUSTER)
        parts = [operation.parts for operation in plan.operations]
        shards = Shards.spread(plan.tensor_bytes, 1)
        slices = Slices.of_operations(parts, plan.tensor_bytes, shards, [BYTE] * len(parts))
        names = tuple(tensor.name for tensor in job.tensors)
        decider = decider or ServerDecisions(policy, job, slices)
        return self.make(decider, slices.operations(policy, names), transport, timeout_s=timeout_s)

    def test_operations_are_launched_as_decided(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(0)
        engine.notify_ready(2)
        transport.finish(2)
        assert transport.launched == [(2,), (0,), (5,)]
        assert engine.launched == [2, 0, 5]

    def test_waiting_ends_when_the_tensor_has_arrived(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(2)
        transport.finish(0)
        assert engine.arrived([2]) == []  # pushed, not pulled
        transport.finish(3)
        engine.wait([2])
        assert engine.arrived([0, 1, 2]) == [2]

    def test_waiting_for_the_launch_does_not_wait_for_the_end(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(2)
        transport.finish(0)
        engine.wait_for_launch([2])
        assert engine.arrived([2]) == []

    def test_a_message_that_is_over_at_once_neither_recurses_nor_reorders(self) -> None:
        transport = ImmediateTransport()
        engine = self.engine(transport, bucket_plan([4] * 200, 4))
        engine.notify_ready(*range(200))
        engine.wait(range(200))
        pushes = [message for message in transport.launched if message < (200,)]
        pulls = [message for message in transport.launched if message >= (200,)]
        assert pulls == [(200 + operation,) for (operation,) in pushes]
        assert len(pushes) == 200

    def test_an_iteration_begins_only_when_nothing_is_in_flight(self) -> None:
        transport = ManualTransport()
        engine = self.engine(transport)
        engine.notify_ready(2)
        transport.finish(0)
        with pytest.raises(PlanMismatch, match="still in flight"):
            engine.begin_iteration()
        transport.finish(3)
        engine.begin_iteration()
        assert engine.arrived([2]) == []
        assert engine.transfers == []
