"""Policies are data, known by name."""

import pytest

from bytelane.core import (
    CreditWindow,
    Knobs,
    Policy,
    knobs_used,
    make_policy,
    policy_names,
    register,
)
from bytelane.core.policy import _registry
from bytelane.errors import InputError, UnknownPolicy
from bytelane.job import Job, Layer, Tensor

JOB = Job(
    "tied",
    tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(3)),
    (Tensor("embedding", 100, (0, 2)), Tensor("middle", 30, (1,)), Tensor("last", 7, (2,))),
)


def test_fifo_sends_whole_tensors_without_limit_behind_a_barrier() -> None:
    policy = make_policy("fifo", JOB, Knobs())
    assert set(policy.priority) == {0}
    assert policy.part_bytes == (None, None, None)
    assert policy.window == CreditWindow(None)
    assert policy.barrier


def test_bytescheduler_ranks_tensors_by_the_layer_that_needs_them_first() -> None:
    policy = make_policy("bytescheduler", JOB, Knobs(40, 80))
    assert policy.priority == (0, 1, 2)
    assert policy.part_bytes == (40, 40, 40)
    assert policy.window == CreditWindow(80)
    assert not policy.barrier


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownPolicy, match=r"did you mean bytescheduler\?"):
        make_policy("byteschedule", JOB, Knobs())
    with pytest.raises(UnknownPolicy, match="there are fifo, bytescheduler"):
        knobs_used("zzz")


def test_a_policy_of_ones_own_is_as_good_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bytelane.core.policy._registry", dict(_registry))

    @register("smallest-first", "credit_bytes")
    def smallest_first(job: Job, knobs: Knobs) -> Policy:
        return Policy(
            "smallest-first",
            tuple(tensor.bytes for tensor in job.tensors),
            (None,) * len(job.tensors),
            CreditWindow(knobs.credit_bytes),
            barrier=True,
        )

    assert "smallest-first" in policy_names()
    assert knobs_used("smallest-first") == {"credit_bytes"}
    assert make_policy("smallest-first", JOB, Knobs()).priority == (100, 30, 7)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(InputError, match="already a policy"):
        register("fifo")(lambda job, knobs: make_policy("fifo", job, knobs))


def test_a_knob_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="no knob 'speed'"):
        register("wishful", "speed")


@pytest.mark.parametrize("knobs", [{"partition_bytes": 0}, {"credit_bytes": -1}])
def test_knobs_must_be_positive(knobs: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be 1 or more"):
        Knobs(**knobs)


def test_a_credit_that_never_opens_is_refused() -> None:
    with pytest.raises(InputError, match="never opens"):
        CreditWindow(0)
