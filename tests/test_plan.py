"""Plans cover every byte once, travel as bytes, and have a name that depends on all of them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.core import CreditWindow, Element, Operation, Plan, SubTask, bucket_plan
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
        ([*WHOLE, (SubTask(2, 0, 4),)], "tensor 2, which is not there"),
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
    assert spread.lanes == max(1, min(lanes, len(plan.operations)))
    assert spread.on_lanes(1) == plan


@pytest.mark.parametrize("lanes", [0, -1, 17])
def test_a_plan_has_a_few_lanes(lanes: int) -> None:
    with pytest.raises(InputError, match=r"lanes are not possible; use 1 to 16"):
        plan_of(*WHOLE).on_lanes(lanes)
