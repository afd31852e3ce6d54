"""Plans cover every byte once, travel as bytes, and have a name that depends on all of them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.core import (
    CreditWindow,
    Element,
    Lane,
    Operation,
    Plan,
    Scheduler,
    SubTask,
    bucket_plan,
    in_halves,
)
from bytelane.errors import InputError

sizes = st.lists(st.integers(1, 100), max_size=10).map(tuple)


def plan_of(*operations: tuple[SubTask, ...], tensor_bytes: tuple[int, ...] = (8, 4)) -> Plan:
    sent = tuple(Operation(parts) for parts in operations)
    return Plan("test", tensor_bytes, sent, CreditWindow(8), barrier=False)


WHOLE = ((SubTask(0, 0, 8),), (SubTask(1, 0, 4),))


@given(sizes, st.integers(1, 150), st.integers(1, 9))
def test_a_plan_survives_its_journey(
    tensor_bytes: tuple[int, ...], bucket: int, version: int
) -> None:
    plan = bucket_plan(tensor_bytes, bucket, version)
    again = Plan.decode(plan.encode())
    assert again == plan
    assert again.digest == plan.digest


@given(sizes, st.integers(1, 150))
def test_buckets_run_backwards_and_are_full_but_not_overfull(
    tensor_bytes: tuple[int, ...], bucket: int
) -> None:
    plan = bucket_plan(tensor_bytes, bucket)
    order = [part.tensor for operation in plan.operations for part in operation.parts]
    assert order == list(reversed(range(len(tensor_bytes))))
    for operation, following in zip(plan.operations, plan.operations[1:], strict=False):
        assert len(operation.parts) == 1 or operation.bytes <= bucket
        assert operation.bytes + following.parts[0].bytes > bucket
    assert plan.barrier


def test_equal_plans_have_equal_digests_and_others_have_not() -> None:
    plan = plan_of(*WHOLE)
    assert plan.digest == plan_of(*WHOLE).digest
    assert plan.digest != plan_of(*reversed(WHOLE)).digest
    for change in ({"version": 2}, {"barrier": True}, {"window": CreditWindow(9)}):
        assert msgspec.structs.replace(plan, **change).digest != plan.digest


@pytest.mark.parametrize(
    ("operations", "complaint"),
    [
        ([(SubTask(0, 0, 8),)], "sends 0 of the 4 bytes of tensor 1"),
        ([*WHOLE, (SubTask(1, 0, 4),)], "exactly once"),
        ([(SubTask(0, 0, 3), SubTask(0, 4, 8)), WHOLE[1]], "after byte 3 it goes on at 4"),
        ([*WHOLE, (SubTask(2, 0, 4),)], "tensor 2, but there are 2"),
        ([(SubTask(0, 0, 8),), (SubTask(1, 0, 5),)], "sends 5 of the 4 bytes"),
    ],
)
def test_a_plan_that_loses_or_repeats_bytes_is_refused(
    operations: list[tuple[SubTask, ...]], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        plan_of(*operations)


def test_foreign_bytes_and_formats_are_refused() -> None:
    with pytest.raises(InputError, match="not a plan"):
        Plan.decode(b"\xff\x00")
    with pytest.raises(InputError, match="format 99"):
        msgspec.structs.replace(plan_of(*WHOLE), format=99)
    with pytest.raises(InputError, match="not a plan"):
        Plan.decode(msgspec.msgpack.encode({"policy": "x"}))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.integers(1, 60),
    st.integers(1, 50),
)
def test_cutting_a_plan_leaves_nothing_too_large_and_keeps_the_order(
    tensor_bytes: list[int], bucket: int, most: int
) -> None:
    plan = bucket_plan(tensor_bytes, bucket)
    cut = plan.cut(most)
    assert all(operation.bytes <= most for operation in cut.operations)
    assert [_span(p) for p in _joined(cut)] == [_span(p) for p in _joined(plan)]
    assert plan.cut(sum(tensor_bytes)) == plan


@given(
    st.lists(
        st.tuples(st.sampled_from([("half", 2), ("float", 4), ("double", 8)]), st.integers(1, 9)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 60),
    st.integers(1, 50),
)
def test_a_plan_that_fits_cuts_between_elements_and_never_mixes_kinds(
    tensors: list[tuple[tuple[str, int], int]], bucket: int, most: int
) -> None:
    elements = [Element(*kind) for kind, _ in tensors]
    plan = bucket_plan(
        [e.bytes * count for e, (_, count) in zip(elements, tensors, strict=True)], bucket
    )
    fitting = plan.cut(most).fit_to(elements)  # a plan refuses itself unless it covers every byte
    for operation in fitting.operations:
        assert len({elements[part.tensor].kind for part in operation.parts}) == 1
        for part in operation.parts:
            assert part.start % elements[part.tensor].bytes == 0
            assert part.stop % elements[part.tensor].bytes == 0
    assert fitting.fit_to(elements) == fitting


def _joined(plan: Plan) -> list[SubTask]:
    """Return the parts in launch order, neighbours of one tensor as one."""
    joined: list[SubTask] = []
    for part in (part for operation in plan.operations for part in operation.parts):
        if joined and joined[-1].tensor == part.tensor and joined[-1].stop == part.start:
            joined[-1] = SubTask(part.tensor, joined[-1].start, part.stop)
        else:
            joined.append(part)
    return joined


def _span(part: SubTask) -> tuple[int, int, int]:
    return part.tensor, part.start, part.stop


@given(sizes, st.integers(1, 150), st.integers(1, 16))
def test_lanes_take_turns_and_change_nothing_else(
    tensor_bytes: tuple[int, ...], bucket: int, lanes: int
) -> None:
    plan = bucket_plan(tensor_bytes, bucket)
    spread = plan.on_lanes(lanes)
    assert [o.lane for o in spread.operations] == [k % lanes for k in range(len(plan.operations))]
    assert spread.lanes == (Lane(),) * max(1, min(lanes, len(plan.operations)))
    assert spread.on_lanes(1) == plan


@pytest.mark.parametrize("lanes", [0, -1, 17])
def test_a_plan_has_a_few_lanes(lanes: int) -> None:
    with pytest.raises(InputError, match=r"lanes are not possible; use 1 to 16"):
        plan_of(*WHOLE).on_lanes(lanes)


def test_an_operation_needs_its_lane() -> None:
    plan = plan_of(*WHOLE).on_lanes(2)
    with pytest.raises(InputError, match="the plan sends on lane 1, but has 1"):
        msgspec.structs.replace(plan, lanes=(Lane(),))
    with pytest.raises(InputError, match="17 lanes are not possible"):
        msgspec.structs.replace(plan, lanes=(Lane(),) * 17)


@pytest.mark.parametrize("connections", [0, 65, True])
def test_a_lane_has_some_connections(connections: int) -> None:
    with pytest.raises(InputError, match="connections is"):
        Lane(connections)


def lanes_with(windows: list[int | None]) -> tuple[Lane, ...]:
    return tuple(Lane(window=CreditWindow(credit)) for credit in windows)


@given(
    sizes,
    st.lists(st.none() | st.integers(1, 200), min_size=1, max_size=4).map(lanes_with),
    st.booleans(),
    st.data(),
)
def test_every_lane_keeps_its_own_window_and_the_plan_its_order(
    tensor_bytes: tuple[int, ...], lanes: tuple[Lane, ...], halves: bool, data: st.DataObject
) -> None:
    plan = bucket_plan(tensor_bytes, 1).on_lanes(len(lanes))
    count = len(plan.operations)
    stages = in_halves(range(count)) if halves else plan.stages
    plan = msgspec.structs.replace(plan, lanes=lanes[: len(plan.lanes)], stages=stages)
    plan = Plan.decode(plan.encode())
    scheduler = Scheduler.of_plan(plan)
    for _ in range(2):  # what one iteration leaves behind must not disturb the next
        scheduler.reset()
        unready, flying = data.draw(st.permutations(range(len(tensor_bytes)))), list[int]()
        started: list[int] = []
        while unready or flying:
            if unready and (not flying or data.draw(st.booleans())):
                starts = scheduler.notify_ready(unready.pop(), 0.0)
            else:
                starts = scheduler.notify_finish(flying.pop(0), 0.0)
            for start in starts:
                lane = plan.operations[start.operation % count].lane
                beside = [plan.operations[number % count] for number in flying]
                in_flight = sum(other.bytes for other in beside if other.lane == lane)
                assert in_flight < plan.lanes[lane].window.limit
                flying.append(start.operation)
                started.append(start.operation)
        assert started == list(range(count * len(plan.stages)))
