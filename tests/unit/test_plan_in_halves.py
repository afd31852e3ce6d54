"""Plans in two halves: all is reduce-scattered in one order, and then gathered in another."""

from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import (
    CreditWindow,
    Element,
    Operation,
    Plan,
    PlannedStage,
    Policy,
    Scheduler,
    Stage,
    SubTask,
    bucket_plan,
    in_halves,
    make_policy,
    policies_for,
    require_plannable,
)
from bytelane.core.plan import ALL_REDUCE
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor

# Operation 0 is tensor 2, 1 is 1, 2 is 0; their second halves are 3, 4 and 5.
HALVES = msgspec.structs.replace(bucket_plan([20, 20, 30], 1), stages=in_halves((2, 0, 1)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Tensors cut anywhere, pieces joined at random, gathered in any order."""
    tensor_bytes = draw(st.lists(st.integers(1, 12).map(lambda n: 8 * n), min_size=1, max_size=6))
    parts = []
    for tensor, size in enumerate(tensor_bytes):
        bounds = [0, *sorted(draw(st.sets(st.integers(1, size - 1), max_size=4))), size]
        parts += [SubTask(tensor, start, stop) for start, stop in pairwise(bounds)]
    operations: list[list[SubTask]] = []
    for part in draw(st.permutations(parts)):
        if not operations or draw(st.booleans()):
            operations.append([])
        operations[-1].append(part)
    return Plan(
        "test",
        tuple(tensor_bytes),
        tuple(Operation(tuple(joined)) for joined in operations),
        CreditWindow(draw(st.none() | st.integers(1, 40))),
        barrier=False,
        stages=in_halves(draw(st.permutations(range(len(operations))))),
    )


def gather_order(plan: Plan) -> tuple[int, ...]:
    order = plan.stages[1].order
    assert order is not None
    return order


@given(plans())
def test_it_survives_its_journey_and_has_its_own_digest(plan: Plan) -> None:
    again = Plan.decode(plan.encode())
    assert again == plan
    assert again.digest == plan.digest
    assert msgspec.structs.replace(plan, stages=ALL_REDUCE).digest != plan.digest


@given(plans())
def test_both_halves_send_every_byte_once(plan: Plan) -> None:
    stages = [(stage.collective, stage.after_all) for stage in plan.stages]
    assert stages == [("reduce-scatter", False), ("all-gather", True)]
    gathered = Counter(p for number in gather_order(plan) for p in plan.operations[number].parts)
    assert gathered == Counter(p for operation in plan.operations for p in operation.parts)


@pytest.mark.parametrize("order", [(0,), (0, 0, 1), (1, 2, 3), (0, 1, 2, 2)])
def test_what_is_not_gathered_once_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="each of the plan's 3 operations exactly once"):
        msgspec.structs.replace(HALVES, stages=in_halves(order))


@given(plans(), st.lists(st.sampled_from([2, 4, 8]), min_size=6, max_size=6))
def test_fitting_to_elements_keeps_the_order_of_both_halves(plan: Plan, sizes: list[int]) -> None:
    fitted = plan.fit_to([Element(f"{size} bytes", size) for size in sizes])
    origin = [_origin(plan, operation) for operation in fitted.operations]
    assert origin == sorted(origin)
    place = {old: k for k, old in enumerate(gather_order(plan))}
    gathered = [place[origin[number]] for number in gather_order(fitted)]
    assert gathered == sorted(gathered)


@given(plans(), st.integers(1, 40))
def test_cutting_keeps_the_order_of_both_halves(plan: Plan, most: int) -> None:
    cut = plan.cut(most)
    assert all(operation.bytes <= most for operation in cut.operations)
    gathered = [part for number in gather_order(cut) for part in cut.operations[number].parts]
    whole = [part for number in gather_order(plan) for part in plan.operations[number].parts]
    assert _bytes_in_order(gathered) == _bytes_in_order(whole)


def _bytes_in_order(parts: list[SubTask]) -> list[tuple[int, int]]:
    return [(part.tensor, byte) for part in parts for byte in range(part.start, part.stop)]


@pytest.mark.parametrize(
    "stages",
    [
        (),
        (PlannedStage("all-reduce", (0, 1, 2)),),
        (PlannedStage("all-reduce", after_all=True),),
    ],
)
def test_a_plan_begins_with_its_operations_as_they_are_listed(
    stages: tuple[PlannedStage, ...],
) -> None:
    with pytest.raises(InputError, match="a plan begins with a stage that launches operations as"):
        msgspec.structs.replace(HALVES, stages=stages)


def _origin(plan: Plan, fitted: Operation) -> int:
    """Return which operation a fitted one was cut from: a cut only ever moves towards the start."""
    tensor, last = fitted.parts[0].tensor, fitted.parts[0].stop - 1
    (number,) = (
        k
        for k, operation in enumerate(plan.operations)
        for part in operation.parts
        if part.tensor == tensor and part.start <= last < part.stop
    )
    return number


def test_operations_have_names_for_people() -> None:
    names = ["conv", "weight", "bias"]
    assert [HALVES.describe(number, names) for number in (0, 5)] == [
        "reduce-scatter bias",
        "all-gather conv",
    ]
    in_one = msgspec.structs.replace(HALVES, stages=ALL_REDUCE)
    assert [in_one.describe(number, names) for number in range(3)] == names[::-1]


# --- followed by the scheduler -------------------------------------------------------------------


def started(scheduler: Scheduler, kind: str, which: int) -> list[int]:
    tell = scheduler.notify_ready if kind == "ready" else scheduler.notify_finish
    return [start.operation for start in tell(which, 0.0)]


def test_nothing_is_gathered_before_all_is_scattered() -> None:
    scheduler = Scheduler.of_plan(HALVES)
    assert [started(scheduler, "ready", tensor) for tensor in (2, 1, 0)] == [[0], [1], [2]]
    assert [started(scheduler, "finish", k) for k in (1, 2, 0)] == [[], [], [5, 3, 4]]


def test_a_tensor_has_arrived_when_it_is_gathered() -> None:
    scheduler = Scheduler.of_plan(HALVES)
    for tensor in (2, 1, 0):
        scheduler.notify_ready(tensor, 0.0)
    for operation in range(3):
        scheduler.notify_finish(operation, 0.0)
    assert not any(scheduler.is_synchronised(tensor) for tensor in range(3))
    scheduler.notify_finish(3, 0.0)
    assert [scheduler.is_synchronised(tensor) for tensor in range(3)] == [False, False, True]


def test_each_half_has_the_window() -> None:
    scheduler = Scheduler.of_plan(msgspec.structs.replace(HALVES, window=CreditWindow(1)))
    assert [started(scheduler, "ready", tensor) for tensor in (0, 1, 2)] == [[], [], [0]]
    order = [0]
    while order[-1] != 4:  # the last to be gathered
        order += started(scheduler, "finish", order[-1])
    assert order == [0, 1, 2, 5, 3, 4]


@given(plans(), st.data())
def test_both_orders_are_kept_whatever_happens(plan: Plan, data: st.DataObject) -> None:
    scheduler = Scheduler.of_plan(plan)
    count = len(plan.operations)
    waiting, flying, starts = list(range(len(plan.tensor_bytes))), list[int](), list[int]()
    while waiting or flying:
        choices = [("ready", tensor) for tensor in waiting] + [("finish", k) for k in flying]
        kind, which = data.draw(st.sampled_from(choices))
        (waiting if kind == "ready" else flying).remove(which)
        new = started(scheduler, kind, which)
        flying += new
        starts += new
    assert starts == [*range(count), *(count + number for number in gather_order(plan))]
    assert scheduler.synchronised
    assert scheduler.in_flight_bytes == 0


# --- what can be carried out ---------------------------------------------------------------------

ONE_LAYER = Job("job", (Layer("layer", 1.0, 1.0),), (Tensor("tensor", 8, (0,)),))
SCATTER = Stage("reduce-scatter", (0,))
GATHER = Stage("all-gather", (0,), after_all=True)


def can_be_planned(policy: Policy) -> bool:
    try:
        require_plannable(policy)
    except InputError as error:
        return "can be simulated, but not yet carried out for real" not in str(error)
    return True


def test_all_policies_but_two_can_be_carried_out() -> None:
    made = [
        make_policy(n, ONE_LAYER, Cluster.star(2, Link(1.0))) for n in policies_for("allreduce")
    ]
    refused = {policy.name for policy in made if not can_be_planned(policy)}
    assert refused == {"sequential", "optimal"}


@pytest.mark.parametrize(
    ("stages", "more"),
    [
        ((SCATTER, msgspec.structs.replace(GATHER, after_all=False)), {}),
        ((SCATTER, msgspec.structs.replace(GATHER, window=CreditWindow(8))), {}),
        ((SCATTER, msgspec.structs.replace(GATHER, collective="all-reduce")), {}),
        ((SCATTER,), {}),
        ((SCATTER, GATHER, GATHER), {}),
        ((SCATTER, GATHER), {"fusion_bytes": 8}),
    ],
)
def test_stages_that_no_plan_can_hold_are_refused(
    stages: tuple[Stage, ...], more: dict[str, Any]
) -> None:
    assert can_be_planned(Policy("mine", (SCATTER, GATHER), barrier=False))
    assert not can_be_planned(Policy("mine", stages, barrier=False, **more))
