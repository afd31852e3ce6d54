"""Real ranks, real signals: every other rank hears who has died, failed or left, at once."""

import os
import signal
import time

import pytest

from process_lookup import runs, state_of
from watched import PATIENCE_S, QUICK, Rank, await_true, children_of, ranks

pytestmark = pytest.mark.timeout(60)

NOTICED_S = 10.0  # what is promised for deaths and freezing


# Death


def test_a_killed_rank_is_named_on_every_other_rank() -> None:
    with ranks(4) as (first, second, third, fourth):
        killed_at = second.signal(signal.SIGKILL)
        for rank in (first, third, fourth):
            assert f"loss PeerLost 1 rank 1 has died (process {second.pid} on 127.0.0.1)" == (
                rank.expect("loss ")
            )
            assert rank.when("loss ") - killed_at < NOTICED_S
        assert await_true(lambda: not runs(second.sentinel), 2.0)


def test_a_rank_that_ends_without_a_word_has_died() -> None:
    with ranks(2) as (first, second):
        second.tell("exit")
        assert "PeerLost 1" in first.expect("loss ")


def test_a_forked_child_that_lives_on_does_not_hide_the_death() -> None:
    """It has inherited everything, also the connection to the sentinel."""
    with ranks(2) as (first, second):
        second.tell("fork")
        child = int(second.expect("child ").split()[1])
        try:
            assert first.lines("loss ") == []  # what the child said and closed was nothing
            second.signal(signal.SIGKILL)
            assert "PeerLost 1 rank 1 has died" in first.expect("loss ")
            assert await_true(lambda: not runs(second.sentinel), 2.0)
            assert state_of(child) == "S"
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_rank_that_dies_before_it_knows_the_others_leaves_nothing() -> None:
    rank = Rank(0, 2, QUICK)
    rank.await_start()
    rank.signal(signal.SIGKILL)
    assert rank.end() == -signal.SIGKILL
    assert await_true(lambda: not runs(rank.sentinel), 2.0)


# Progress


def test_the_rank_that_has_launched_least_is_the_one_that_is_waited_for() -> None:
    with ranks(3) as (first, second, third):
        first.tell("progress", 9)
        second.tell("progress", 8)
        third.tell("progress", 9)

        def names_the_second() -> bool:
            first.tell("behind")
            return bool(first.lines("waiting for rank 1 for 60 s; it is alive"))

        assert await_true(names_the_second)
        second.tell("progress", 9)

        def names_nobody() -> bool:
            first.tell("behind")
            return bool(first.lines("no rank is behind"))

        assert await_true(names_nobody)


# Failing, leaving


def test_a_failure_is_repeated_on_every_other_rank() -> None:
    with ranks(3) as (first, second, third):
        second.tell("fail", "ValueError: it is \N{SNOWMAN}")
        text = "loss PeerFailed 1 rank 1 failed: ValueError: it is \N{SNOWMAN}"
        assert first.expect("loss ") == third.expect("loss ") == text
        second.tell("exit")
        assert await_true(lambda: not runs(second.sentinel))
        assert len(first.losses()) == len(third.losses()) == 1
        assert second.losses() == []


def test_words_before_the_end_arrive_before_it() -> None:
    with ranks(2) as (first, second):
        second.tell("fail KeyError: 7\nexit")
        assert first.expect("loss ") == "loss PeerFailed 1 rank 1 failed: KeyError: 7"


def test_leaving_in_order_is_no_loss_until_somebody_needs_the_one_who_left() -> None:
    with ranks(3) as (first, second, third):
        for rank in (first, second, third):
            rank.tell("progress", 5)
        second.tell("close")
        second.expect("done close")
        assert state_of(second.sentinel) == "X"  # not even a zombie
        time.sleep(1.0)
        assert first.losses() == third.losses() == []
        first.tell("progress", 6)
        text = "loss PeerLost 1 rank 1 has left: its script ended"
        assert first.expect("loss ") == third.expect("loss ") == text


def test_all_leave_at_once_without_a_loss() -> None:
    with ranks(4) as all_of_us:
        for rank in all_of_us:
            rank.tell("progress", 5)
            rank.tell("close")
        for rank in all_of_us:
            rank.expect("done close")
            assert rank.complaints() == []


# The sentinels themselves


def test_only_its_rank_ends_a_sentinel() -> None:
    with ranks(2) as (first, second):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(second.sentinel, number)
        second.tell("fail", "nothing, but it can be said")
        assert "PeerFailed 1" in first.expect("loss ")
        assert children_of(second.pid) == [second.sentinel]


def test_ctrl_c_ends_the_rank_and_the_sentinel_prints_nothing() -> None:
    with ranks(2) as (first, second):
        os.killpg(second.pid, signal.SIGINT)
        assert "PeerLost 1" in first.expect("loss ")
        assert await_true(lambda: state_of(second.pid) == "Z")
        assert "KeyboardInterrupt" in second.lines()
        assert len(second.lines("Traceback")) == 1


def test_output_of_a_rank_ends_with_the_rank() -> None:
    """Whoever reads it must not wait for the sentinel."""
    with ranks(2) as (_, second):
        os.kill(second.sentinel, signal.SIGSTOP)
        second.signal(signal.SIGKILL)
        second._reader.join(PATIENCE_S)
        assert not second._reader.is_alive()
        os.kill(second.sentinel, signal.SIGCONT)
