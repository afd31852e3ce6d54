"""Events in, actions out: no clock, no network, no sleep."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import Event, Knobs, Plan, Policy, Scheduler, Start, bucket_plan
from bytelane.core import make_policy as make_policy_for
from bytelane.core.knobs import CreditWindow
from bytelane.core.plan import Operation
from bytelane.core.task import SubTask
from bytelane.errors import IllegalEvent
from bytelane.job import Job, Layer, Tensor
from strategies import jobs

THREE = Job(
    "three",
    tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(3)),
    tuple(Tensor(f"l{i}", size, (i,)) for i, size in enumerate((20, 20, 30))),
)


ALL_REDUCE = Cluster.star(2, Link(8.0))


def make_policy(name: str, job: Job, knobs: Knobs | None = None) -> Policy:
    return make_policy_for(name, job, ALL_REDUCE, knobs)


def started(actions: list[Start]) -> list[int]:
    return [action.operation for action in actions]


def test_fifo_starts_everything_in_ready_order() -> None:
    scheduler = Scheduler.of_policy(make_policy("fifo", THREE), THREE)
    assert scheduler.notify_ready(2, now=4.0) == [Start(2, 4.0)]
    assert scheduler.notify_ready(1, now=5.0) == [Start(1, 5.0)]
    assert scheduler.notify_ready(0, now=6.0) == [Start(0, 6.0)]
    assert scheduler.notify_finish(2, now=7.0) == []


def test_an_urgent_part_overtakes_queued_ones_but_not_those_in_flight() -> None:
    policy = make_policy("bytescheduler", THREE, Knobs(10, 20))
    scheduler = Scheduler.of_policy(policy, THREE)  # parts: 0 1 | 2 3 | 4 5 6
    assert started(scheduler.notify_ready(2, now=4.0)) == [4, 5]
    assert started(scheduler.notify_ready(0, now=5.0)) == []
    assert started(scheduler.notify_finish(4, now=6.0)) == [0]
    assert started(scheduler.notify_finish(5, now=6.0)) == [1]
    assert started(scheduler.notify_finish(0, now=6.0)) == [6]


def test_a_credit_no_larger_than_a_part_means_stop_and_wait() -> None:
    scheduler = Scheduler.of_policy(make_policy("bytescheduler", THREE, Knobs(10, 10)), THREE)
    assert started(scheduler.notify_ready(2, now=0.0)) == [4]
    assert scheduler.in_flight_bytes == 10
    assert started(scheduler.notify_finish(4, now=1.0)) == [5]


def test_a_resized_operation_takes_its_new_size_of_the_window() -> None:
    scheduler = Scheduler.of_policy(make_policy("bytescheduler", THREE, Knobs(10, 20)), THREE)
    for part, size in ((4, 25), (5, 1), (6, 1)):
        scheduler.resize(part, size)
    assert started(scheduler.notify_ready(2, now=0.0)) == [4]
    assert scheduler.in_flight_bytes == 25
    assert started(scheduler.notify_finish(4, now=1.0)) == [5, 6]
    assert scheduler.in_flight_bytes == 2


def test_an_operation_that_goes_alone_does_so_at_any_size() -> None:
    first, second = Operation((SubTask(0, 0, 20),), alone=True), Operation((SubTask(1, 0, 20),))
    plan = Plan("two", (20, 20), (first, second), CreditWindow(50), barrier=False)
    scheduler = Scheduler.of_plan(plan)
    scheduler.resize(0, 1)
    scheduler.resize(1, 1)
    assert started(scheduler.notify_all_ready((0, 1), now=0.0)) == [0]
    assert started(scheduler.notify_finish(0, now=1.0)) == [1]


def test_only_what_is_not_ready_can_be_resized() -> None:
    scheduler = Scheduler.of_policy(make_policy("fifo", THREE), THREE)
    scheduler.notify_ready(2, now=0.0)
    with pytest.raises(IllegalEvent, match="was ready already, its size cannot change"):
        scheduler.resize(2, 5)
    for nowhere in (-1, 3):
        with pytest.raises(IllegalEvent, match=f"there is no operation {nowhere}"):
            scheduler.resize(nowhere, 5)


def test_the_window_may_overshoot_by_less_than_one_part() -> None:
    scheduler = Scheduler.of_policy(make_policy("bytescheduler", THREE, Knobs(10, 11)), THREE)
    assert started(scheduler.notify_ready(2, now=0.0)) == [4, 5]


def test_a_plan_starts_operations_in_its_order_whatever_is_ready() -> None:
    scheduler = Scheduler.of_plan(bucket_plan([20, 20, 30], bucket_bytes=1))
    assert started(scheduler.notify_ready(0, now=0.0)) == []  # operation 2 of the plan
    assert started(scheduler.notify_ready(2, now=1.0)) == [0]
    assert started(scheduler.notify_ready(1, now=2.0)) == [1, 2]


def test_a_fused_operation_waits_for_all_its_tensors_and_serves_all_of_them() -> None:
    scheduler = Scheduler.of_plan(bucket_plan([20, 20, 30], bucket_bytes=50))
    assert scheduler.notify_ready(2, now=0.0) == []
    assert started(scheduler.notify_ready(1, now=1.0)) == [0]
    assert not scheduler.is_synchronised(1)
    scheduler.notify_finish(0, now=2.0)
    assert scheduler.is_synchronised(1)
    assert scheduler.is_synchronised(2)
    assert not scheduler.synchronised


def test_what_is_ready_travels_together_while_it_fits() -> None:
    scheduler = Scheduler.of_policy(
        make_policy("fusion", THREE, Knobs(fusion_bytes=55)), THREE
    )  # sizes 20, 20, 30
    assert scheduler.notify_ready(2, now=0.0) == [Start(2, 0.0)]
    assert scheduler.notify_ready(1, now=1.0) == []  # one message at a time
    assert scheduler.notify_ready(0, now=2.0) == []
    assert scheduler.notify_finish(2, now=3.0) == [Start(1, 3.0), Start(0, 3.0, joined=True)]


def test_what_does_not_fit_waits_for_the_next_message() -> None:
    policy = make_policy("fusion", THREE, Knobs(fusion_bytes=35))
    scheduler = Scheduler.of_policy(policy, THREE)
    scheduler.notify_ready(2, now=0.0)
    scheduler.notify_ready(1, now=0.0)
    scheduler.notify_ready(0, now=0.0)
    assert started(scheduler.notify_finish(2, now=1.0)) == [1]
    assert started(scheduler.notify_finish(1, now=2.0)) == [0]


@pytest.mark.parametrize(
    ("event", "which", "complaint"),
    [
        ("notify_ready", 3, "no tensor 3"),
        ("notify_ready", -1, "no tensor -1"),
        ("notify_ready", 2, "ready already"),
        ("notify_finish", 9, "no operation 9"),
        ("notify_finish", 0, "not in flight"),
    ],
)
def test_an_illegal_event_raises_and_nothing_happens(
    event: str, which: int, complaint: str
) -> None:
    scheduler = Scheduler.of_policy(make_policy("fifo", THREE), THREE)
    scheduler.notify_ready(2, now=0.0)
    before = [column.tolist() for column in scheduler._state], list(scheduler.events)
    with pytest.raises(IllegalEvent, match=complaint):
        getattr(scheduler, event)(which, now=1.0)
    assert ([column.tolist() for column in scheduler._state], scheduler.events) == before


def test_events_are_kept_for_a_bug_report_and_reset_begins_anew() -> None:
    scheduler = Scheduler.of_policy(make_policy("fifo", THREE), THREE)
    scheduler.notify_ready(2, now=4.0)
    scheduler.notify_finish(2, now=5.0)
    assert scheduler.events == [Event(4.0, "ready", 2), Event(5.0, "finish", 2)]
    assert scheduler.is_ready(2)
    scheduler.reset()
    assert scheduler.events == []
    assert not scheduler.is_ready(2)
    assert scheduler.notify_ready(2, now=9.0) == [Start(2, 9.0)]


knob_values = st.builds(Knobs, st.integers(1, 40), st.integers(1, 80), st.integers(1, 80))


def drive(scheduler: Scheduler, tensors: int, data: st.DataObject) -> tuple[list[int], list[int]]:
    """Feed random legal events until nothing is left; return the starts and the finishes."""
    waiting, flying, starts, finishes = list(range(tensors)), [], [], []
    while waiting or flying:
        choices = [("ready", t) for t in waiting] + [("finish", k) for k in flying]
        kind, which = data.draw(st.sampled_from(choices))
        if kind == "ready":
            waiting.remove(which)
            new = started(scheduler.notify_ready(which, now=0.0))
        else:
            flying.remove(which)
            finishes.append(which)
            new = started(scheduler.notify_finish(which, now=0.0))
        flying += new
        starts += new
    return starts, finishes


@given(jobs(), knob_values, st.sampled_from(["fifo", "bytescheduler"]), st.data())
def test_every_operation_starts_and_finishes_exactly_once(
    job: Job, knobs: Knobs, name: str, data: st.DataObject
) -> None:
    policy = make_policy(name, job, knobs)
    scheduler = Scheduler.of_policy(policy, job)
    starts, finishes = drive(scheduler, len(job.tensors), data)
    assert sorted(starts) == list(range(policy.cut(job).operation_count)) == sorted(finishes)
    assert scheduler.synchronised
    assert scheduler.in_flight_bytes == 0


@given(jobs(), knob_values, st.data())
def test_the_window_is_never_exceeded_by_a_whole_part(
    job: Job, knobs: Knobs, data: st.DataObject
) -> None:
    scheduler = Scheduler.of_policy(make_policy("bytescheduler", job, knobs), job)
    flying: list[int] = []
    for tensor in data.draw(st.permutations(range(len(job.tensors)))):
        flying += started(scheduler.notify_ready(tensor, now=0.0))
        assert scheduler.in_flight_bytes < knobs.credit_bytes + knobs.partition_bytes
        while flying and data.draw(st.booleans()):
            flying += started(scheduler.notify_finish(flying.pop(0), now=0.0))
            assert scheduler.in_flight_bytes < knobs.credit_bytes + knobs.partition_bytes


@given(jobs(), knob_values, st.integers(1, 20), st.booleans(), st.data())
def test_nothing_starts_beside_what_is_to_be_alone(
    job: Job, knobs: Knobs, first: int, planned: bool, data: st.DataObject
) -> None:
    growing = Knobs(knobs.partition_bytes, knobs.credit_bytes, first_bytes=first)
    policy = make_policy("units", job, growing)
    scheduler = Scheduler.of_policy(policy, job)
    alone = 0
    if planned:
        pieces = policy.cut(job)
        order = data.draw(st.permutations(range(pieces.operation_count)))
        plan = Plan.record(policy, job, pieces, [[piece] for piece in order])
        assert [operation.alone for operation in plan.operations] == [k == 0 for k in order]
        scheduler = Scheduler.of_plan(Plan.decode(plan.encode()))
        alone = order.index(0) if order else 0
    waiting, flying = list(range(len(job.tensors))), list[int]()
    while waiting or flying:
        was_alone = alone in flying
        which = data.draw(st.integers(0, len(waiting) + len(flying) - 1))
        if which < len(waiting):
            new = started(scheduler.notify_ready(waiting.pop(which), now=0.0))
        else:
            new = started(scheduler.notify_finish(flying.pop(which - len(waiting)), now=0.0))
        assert not (was_alone and alone in flying and new)
        assert alone not in new or new[-1] == alone
        flying += new
    assert scheduler.synchronised


@given(jobs(), knob_values, st.data())
def test_the_queue_gives_out_the_least_priority_and_then_the_first_that_came(
    job: Job, knobs: Knobs, data: st.DataObject
) -> None:
    policy = make_policy("bytescheduler", job, Knobs(knobs.partition_bytes, 1))  # one in flight
    scheduler = Scheduler.of_policy(policy, job)
    pieces = policy.cut(job)
    expected: list[tuple[int, int, int]] = []
    arrivals = 0
    flying: list[int] = []
    for tensor in data.draw(st.permutations(range(len(job.tensors)))):
        for operation in (pieces.tensor == tensor).nonzero()[0].tolist():
            heapq.heappush(expected, (policy.stages[0].priority[tensor], arrivals, operation))
            arrivals += 1
        new = started(scheduler.notify_ready(tensor, now=0.0))
        flying += new
        assert new == [heapq.heappop(expected)[2] for _ in new]
    while flying:
        flying = started(scheduler.notify_finish(flying[0], now=0.0))
        assert flying == [heapq.heappop(expected)[2] for _ in flying]
    assert not expected


@given(jobs(), knob_values, st.sampled_from(["fifo", "bytescheduler", "dear", "fsdp"]), st.data())
def test_replaying_a_recorded_plan_gives_the_same_order_at_the_same_events(
    job: Job, knobs: Knobs, name: str, data: st.DataObject
) -> None:
    policy = make_policy(name, job, knobs)
    first = Scheduler.of_policy(policy, job)
    starts, _ = drive(first, len(job.tensors), data)
    count = policy.cut(job).operation_count
    later = [[operation - count for operation in starts[count:]]] * (len(policy.stages) - 1)
    messages = [[piece] for piece in starts[:count]]
    plan = Plan.record(policy, job, policy.cut(job), messages, 1, later)
    # The second half of an operation is as many further on as there are first ones.
    place = {piece: k for k, piece in enumerate(starts[:count])}
    number_in_plan = {k: k // count * count + place[k % count] for k in starts}
    operation_of = {number: operation for operation, number in number_in_plan.items()}
    again = Scheduler.of_plan(Plan.decode(plan.encode()))
    replayed: list[int] = []
    for event in first.events:
        if event.kind == "ready":
            replayed += started(again.notify_ready(event.which, event.now))
        else:  # the same transfer must be in flight at the same moment, or this raises
            replayed += started(again.notify_finish(number_in_plan[event.which], event.now))
    assert [operation_of[number] for number in replayed] == starts
