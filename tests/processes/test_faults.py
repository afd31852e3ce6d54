"""A rank is killed, frozen or fails: the others soon say who, and where their weights are."""

import re
from pathlib import Path

import pytest

from faults import HALVES, MOMENTS_IN_A_STEP, WHOLE, Outcome, expected_weights, run_fault

SOON_S = 10.0
# Moments in the first iteration, in one that is measured, before the others plan, and under a plan.
KILLS = [
    3,
    12,
    2 * MOMENTS_IN_A_STEP + 9,
    3 * MOMENTS_IN_A_STEP + 6,
    6 * MOMENTS_IN_A_STEP + 2,
    9 * MOMENTS_IN_A_STEP + 11,
]
# Before a gather is waited for, and when some of the gradients have been scattered.
IN_HALVES = [6 * MOMENTS_IN_A_STEP + 3, 8 * MOMENTS_IN_A_STEP + 10]
FREEZES = [2 * MOMENTS_IN_A_STEP + 9, 7 * MOMENTS_IN_A_STEP + 1]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return expected_weights(steps=16)


def require_sound(outcome: Outcome, expected: list[list[int]]) -> None:
    """Everybody has ended in time, and the weights are where the error says."""
    assert outcome.left_over == 0
    for report in outcome.survivors:
        assert report.at_s - outcome.hurt_at_s < SOON_S, report
        assert where_they_are(report.weights, report.note, expected), report


def where_they_are(weights: list[int], note: str, expected: list[list[int]]) -> bool:
    if whole := re.search(r"those after step (\d+)\.", note):
        return weights == expected[int(whole[1])]
    part = re.search(r"middle of step (\d+): (\d+) tensors have their update, (\d+)", note)
    assert part, note
    step, updated, owed = (int(number) for number in part.groups())
    new = sum(a == b for a, b in zip(weights, expected[step], strict=True))
    old = sum(a == b for a, b in zip(weights, expected[step - 1], strict=True))
    return (new, old) == (updated, owed)


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_rank_is_named(tmp_path: Path, moment: int, expected: list[list[int]]) -> None:
    outcome = run_fault("kill", moment, tmp_path)
    require_sound(outcome, expected)
    (report,) = outcome.survivors
    assert (report.error, report.peer) == ("PeerLost", 1)
    assert report.message.startswith("rank 1 has died")


@pytest.mark.parametrize("fault", ["kill", "freeze"])
@pytest.mark.parametrize("moment", IN_HALVES)
def test_a_rank_that_is_lost_between_the_halves_is_named(
    tmp_path: Path, fault: str, moment: int, expected: list[list[int]]
) -> None:
    outcome = run_fault(fault, moment, tmp_path, knobs=HALVES)
    require_sound(outcome, expected)
    (report,) = outcome.survivors
    assert (report.error, report.peer) == ("PeerLost" if fault == "kill" else "PeerFrozen", 1)


@pytest.mark.parametrize("moment", FREEZES)
def test_a_frozen_rank_is_named(tmp_path: Path, moment: int, expected: list[list[int]]) -> None:
    outcome = run_fault("freeze", moment, tmp_path)
    require_sound(outcome, expected)
    (report,) = outcome.survivors
    assert (report.error, report.peer) == ("PeerFrozen", 1)
    assert "stopped by a signal" in report.message


@pytest.mark.parametrize(
    ("fault", "moment"),
    [
        ("raise in forward", 6 * MOMENTS_IN_A_STEP + 4),
        ("raise in backward", 6 * MOMENTS_IN_A_STEP + 10),
        ("raise in the optimizer", 7),
    ],
)
def test_what_a_rank_has_raised_is_repeated(
    tmp_path: Path, fault: str, moment: int, expected: list[list[int]]
) -> None:
    outcome = run_fault(fault, moment, tmp_path)
    require_sound(outcome, expected)
    (report,) = outcome.survivors
    assert report.error in ("PeerFailed", "PeerLost")
    assert report.peer == 1


def test_a_rank_without_memory_for_a_message_is_named(tmp_path: Path) -> None:
    outcome = run_fault("run out of memory", 5, tmp_path, knobs=WHOLE, model="wide")
    require_sound(outcome, expected_weights(steps=5, model="wide"))
    (report,) = outcome.survivors
    assert (report.error, report.peer) == ("PeerFailed", 1)
    assert "synchronising wide failed" in report.message
    assert "can't allocate memory" in report.message


def test_a_rank_that_has_left_is_not_waited_for(tmp_path: Path, expected: list[list[int]]) -> None:
    outcome = run_fault("leave", 6 * MOMENTS_IN_A_STEP + 1, tmp_path)
    require_sound(outcome, expected)
    (report,) = outcome.survivors
    assert (report.error, report.peer) == ("PeerLost", 1)


def test_all_the_others_hear_of_it(tmp_path: Path) -> None:
    outcome = run_fault("kill", 6 * MOMENTS_IN_A_STEP + 9, tmp_path, world=4)
    assert outcome.left_over == 0
    assert [(r.error, r.peer) for r in outcome.survivors] == [("PeerLost", 3)] * 3
    assert all(report.at_s - outcome.hurt_at_s < SOON_S for report in outcome.survivors)
