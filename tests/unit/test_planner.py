"""Planners, wishes and settings, as far as they need no training."""

import pytest

from bytelane.cluster import Cluster, Link
from bytelane.core import (
    Knobs,
    Observation,
    Plan,
    PlannedBy,
    Policy,
    Setting,
    Space,
    Stage,
    Wish,
    bucket_plan,
    choose_knobs,
    find_knob,
    make_policy,
    policy_entry,
    register,
)
from bytelane.core.cutting import MOST_PIECES, partition
from bytelane.core.policy import _registry
from bytelane.errors import InputError, UnknownPolicy
from bytelane.job import Job, Layer, Tensor
from bytelane.knob import Knob

JOB = Job("one", (Layer("l", 1.0, 1.0),), (Tensor("t", 8, (0,)),))
TWO = Cluster.star(2, Link(8.0))


def planned(job: Job, cluster: Cluster | None, version: int) -> Plan:
    return bucket_plan([tensor.bytes for tensor in job.tensors], 8, version)


def test_a_function_that_plans_is_a_planner_that_wishes_for_nothing() -> None:
    planner = PlannedBy(planned)
    seen = Observation(step=3, plan_version=1, iteration_s=1.0)
    assert planner.name == "planned"
    assert planner.plan(JOB, None, 7) == bucket_plan([8], 8, 7)
    assert planner.observe(seen) is Wish.NOTHING
    assert planner.summarise(seen) == ""
    assert PlannedBy(planned, "mine").name == "mine"


@pytest.mark.parametrize(
    ("wish", "model", "network"),
    [
        (Wish.NOTHING, False, False),
        (Wish.PLAN, False, False),
        (Wish.CORRECT, True, False),
        (Wish.MEASURE_AND_PLAN, True, True),
    ],
)
def test_a_wish_says_what_is_measured(wish: Wish, model: bool, network: bool) -> None:
    assert (wish.measures_model, wish.measures_network) == (model, network)


def test_a_knob_without_a_value_is_said() -> None:
    with pytest.raises(InputError, match="knob cars has no value; declare it"):
        Knobs()["cars"]
    assert choose_knobs("bytescheduler")["partition"] == 4 * 2**20


def test_an_unknown_knob_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="there is no knob 'partitoin'; did you mean"):
        find_knob((), "partitoin")


def test_a_policy_has_a_name() -> None:
    with pytest.raises(UnknownPolicy, match="policy is 3; it must be the name of one"):
        policy_entry(3)  # type: ignore[arg-type]


def test_a_knob_without_usual_values_keeps_its_default_in_a_space() -> None:
    def cut(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
        """Do nothing."""
        return Policy("odd", (Stage("all-reduce", (0, 0)),), barrier=True)

    register("odd", knobs=[Knob("cars", "How many.", default=2, kind="count")])(cut)
    try:
        assert [*Space(("odd",))] == [Setting("odd", choose_knobs("odd"))]
        with pytest.raises(InputError, match="gave 2 priorities in stage all-reduce for 1 tensors"):
            make_policy("odd", JOB, TWO)
        with pytest.raises(InputError, match="cars_bytes is no knob of policy odd with this unit"):
            choose_knobs("odd", cars_bytes=3)
    finally:
        del _registry["odd"]


def test_more_pieces_than_can_be_simulated_are_refused() -> None:
    with pytest.raises(InputError, match=f"at most {MOST_PIECES:,} are possible"):
        partition([MOST_PIECES + 1], 1)
