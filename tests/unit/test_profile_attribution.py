"""Dividing an iteration: every moment belongs to one part, and to the right one."""

import itertools
from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.measure.attribution import (
    Kind,
    Mark,
    Measured,
    Part,
    Slice,
    divide,
    mark_cost,
    measured,
    total,
    typical,
)

durations = st.integers(0, 1000).map(float)
kinds = st.sampled_from(
    ["load", "copy", "forward", "loss", "backward", "update", "other", "gate", "done"]
)


def marks(*events: tuple[Kind, float] | tuple[Kind, float, int]) -> list[Mark]:
    return [Mark(*event) for event in events]


def seconds(parts: dict[Part, Slice]) -> dict[Part, float]:
    return {part: found.seconds for part, found in parts.items()}


# Two calls, an activation after each, a loss.
ORDINARY = marks(
    ("other", 0),
    ("load", 1),
    ("other", 3),
    ("copy", 4),
    ("other", 8),
    ("forward", 16),
    ("gate", 17, 0),
    ("gate", 20, 1),
    ("loss", 32),
    ("backward", 33),
    ("done", 35, 2),
    ("done", 39, 1),
    ("done", 40, 1),
    ("done", 64, 0),
    ("update", 65),
    ("end", 100),
)


def test_an_ordinary_iteration_is_divided_by_stage_and_call() -> None:
    assert seconds(divide(ORDINARY)) == {
        Part("load"): 2,
        Part("copy"): 4,
        Part("forward", 0): 4,  # from entering the model
        Part("forward", 1): 12,
        Part("loss"): 1,
        Part("backward", 2): 2,  # the loss
        Part("backward", 1): 5,
        Part("backward", 0): 25,  # with what comes after the last gradient
        Part("update"): 35,
        Part("other"): 1 + 1 + 8,
    }


@given(st.lists(st.tuples(kinds, durations, st.integers(0, 5)), min_size=1, max_size=40))
def test_the_parts_are_the_whole(events: list[tuple[Kind, float, int]]) -> None:
    moments = itertools.accumulate(length for _, length, _ in events)
    made = [Mark(k, at, call) for (k, _, call), at in zip(events, moments, strict=True)]
    parts = divide(made)
    assert total(parts) == made[-1].at_s - made[0].at_s
    assert sum(part.marks for part in parts.values()) == len(made) - 1
    assert all(part.seconds >= 0 for part in parts.values())


@given(st.lists(st.tuples(durations, st.integers(0, 6)), min_size=1, max_size=20))
def test_calls_from_the_last_down_take_until_the_gradient_is_complete(
    gradients: list[tuple[float, int]],
) -> None:
    """In whatever order they come: what a tensor's layer says must not be too early."""
    moments = list(itertools.accumulate(length for length, _ in gradients))
    backward = [Mark("done", at, c) for at, (_, c) in zip(moments, gradients, strict=True)]
    parts = divide([Mark("backward", 0.0), *backward, Mark("end", moments[-1])])
    for call in {call for _, call in gradients}:
        complete_at = max(mark.at_s for mark in backward if mark.call >= call)
        above = sum(s.seconds for part, s in parts.items() if part.call >= call)
        assert above == complete_at


def test_a_gradient_that_comes_too_early_takes_no_time() -> None:
    parts = divide(marks(("backward", 0), ("done", 3, 0), ("done", 9, 1), ("end", 9)))
    assert seconds(parts) == {Part("backward", 1): 9, Part("backward", 0): 0}


def test_what_runs_between_two_models_is_forward_and_only_the_last_is_loss() -> None:
    parts = divide(
        marks(
            ("forward", 0),
            ("gate", 1, 0),
            ("loss", 4),  # the encoder is left ...
            ("forward", 6),  # ... and the decoder entered
            ("gate", 7, 1),
            ("loss", 15),
            ("backward", 16),
            ("done", 18, 0),
            ("end", 18),
        )
    )
    assert seconds(parts) == {
        Part("forward", 0): 7,
        Part("forward", 1): 8,
        Part("loss"): 1,
        Part("backward", 0): 2,
    }


def iterations(*forward_s: float) -> list[dict[Part, Slice]]:
    return [
        {Part("forward", 0): Slice(one, 2), Part("backward", 0): Slice(2 * one, 4)}
        for one in forward_s
    ]


def test_marks_are_taken_off_where_they_were_set() -> None:
    parts = typical(iterations(10, 10, 10), [24, 24, 24], mark_s=1)
    assert parts == {Part("forward", 0): Measured(8, 0), Part("backward", 0): Measured(16, 0)}


def test_no_part_becomes_negative() -> None:
    short = {Part("forward", 0): Slice(1, 2), Part("backward", 0): Slice(20, 4)}
    parts = typical([short], [12], mark_s=2)
    assert [time.median_s for time in parts.values()] == [0, 12]


@given(
    st.lists(st.lists(durations, min_size=4, max_size=4), min_size=1, max_size=9),
    st.lists(durations, min_size=1, max_size=9),
    st.floats(0, 10),
)
def test_together_the_parts_take_what_an_unobserved_iteration_takes(
    observed: list[list[float]], unobserved_s: list[float], mark_s: float
) -> None:
    made = [
        {Part("forward", call): Slice(one, 1) for call, one in enumerate(row)} for row in observed
    ]
    parts = typical(made, unobserved_s, mark_s)
    found = sum(time.median_s for time in parts.values())
    anything = any(median(column) for column in zip(*observed, strict=True))
    assert found == pytest.approx(measured(unobserved_s).median_s if anything else 0)


def test_a_disturbance_in_one_iteration_does_not_show() -> None:
    parts = typical(iterations(10, 10, 500), [30, 30, 900], mark_s=0)
    assert [time.median_s for time in parts.values()] == pytest.approx([10, 20])


@pytest.mark.parametrize(
    ("unobserved_s", "cost"), [([24, 30], 1.0), ([30, 30], 0.0), ([36, 40], 0.0)]
)
def test_the_quickest_iterations_tell_what_a_mark_costs(
    unobserved_s: Sequence[float], cost: float
) -> None:
    assert mark_cost(iterations(10, 12, 80), unobserved_s) == cost


def test_the_spread_lies_between_the_quartiles() -> None:
    assert measured([5, 1, 2, 3, 4]) == Measured(3, 2)
    assert measured([7.5]) == Measured(7.5, 0)
