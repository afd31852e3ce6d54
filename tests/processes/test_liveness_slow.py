"""Frozen, slow, or not to be heard: real ranks, told apart over a few seconds."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from bytelane.runtime.liveness.failure_detector import Limits
from process_lookup import state_of
from watched import QUICK, Rank, ranks

pytestmark = pytest.mark.timeout(60)

NOTICED_S = 10.0  # what is promised for deaths and freezing


class Story(NamedTuple):
    """Groups of ranks that know only each other. In each, something happens to the second one."""

    frozen: list[Rank]
    frozen_at: float
    stopped: list[Rank]
    stopped_together: list[Rank]
    stopped_unseen: list[Rank]
    holding: list[Rank]
    cut: list[Rank]
    mute: list[Rank]
    both_stopped: list[Rank]
    both_stopped_at: float
    both_stopped_for_a_moment: list[Rank]
    both_killed: list[Rank]


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """All at once, because each of them takes its time."""
    with ExitStack() as stack:
        frozen = stack.enter_context(ranks(3, Limits()))
        stopped = stack.enter_context(ranks(2, Limits()))
        stopped_together = stack.enter_context(ranks(2))
        stopped_unseen = stack.enter_context(ranks(2, QUICK, "bare"))
        holding = stack.enter_context(ranks(3))
        cut = stack.enter_context(ranks(2, Limits(silent_s=2.0)))
        mute = stack.enter_context(ranks(2))
        both_stopped = stack.enter_context(ranks(2, Limits()))
        both_stopped_for_a_moment = stack.enter_context(ranks(2, Limits()))
        both_killed = stack.enter_context(ranks(3, Limits()))

        holding[0].tell("progress", 1)
        for rank, how in zip(holding[1:], ("asleep", "busy"), strict=True):
            rank.tell("hold", how)
        cut[1].signal(signal.SIGSTOP)
        os.kill(cut[1].sentinel, signal.SIGSTOP)
        os.kill(mute[1].sentinel, signal.SIGKILL)
        for one in (both_stopped[1], both_stopped_for_a_moment[1]):
            os.kill(one.sentinel, signal.SIGSTOP)
            one.signal(signal.SIGSTOP)
        both_stopped_at = time.monotonic()
        for pid in (both_killed[1].sentinel, both_killed[1].pid):
            os.kill(pid, signal.SIGKILL)
        for rank in (stopped[1], *stopped_together, stopped_unseen[1]):
            rank.signal(signal.SIGSTOP)
        os.killpg(frozen[1].pid, signal.SIGSTOP)  # all of its group, but that is not its sentinel
        frozen_at = time.monotonic()
        time.sleep(3.5)
        holding[0].tell("behind")
        os.kill(cut[1].sentinel, signal.SIGCONT)
        os.kill(both_stopped_for_a_moment[1].sentinel, signal.SIGCONT)
        for rank in (cut[1], both_stopped_for_a_moment[1], stopped[1], *stopped_together):
            rank.signal(signal.SIGCONT)
        time.sleep(0.5)
        stopped[1].signal(signal.SIGSTOP)  # once more: stops do not add up
        frozen[0].expect("loss ")
        time.sleep(1.0)
        stopped[1].signal(signal.SIGCONT)
        for rank in holding[1:]:
            rank.expect("done hold")
        both_stopped[0].expect("loss ")
        yield Story(
            *(frozen, frozen_at),
            *(stopped, stopped_together, stopped_unseen),
            *(holding, cut, mute),
            *(both_stopped, both_stopped_at, both_stopped_for_a_moment, both_killed),
        )
        os.kill(both_stopped[1].sentinel, signal.SIGCONT)


def test_a_frozen_rank_is_named_on_every_other_rank(story: Story) -> None:
    first, second, third = story.frozen
    for rank in (first, third):
        loss = rank.expect("loss ")
        assert "loss PeerFrozen 1 rank 1 has been stopped by a signal for" in loss
        assert f"(process {second.pid} on 127.0.0.1)" in loss
        assert rank.when("loss ") - story.frozen_at < NOTICED_S


def test_a_rank_that_is_stopped_for_a_moment_is_waited_for(story: Story) -> None:
    assert [rank.complaints() for rank in story.stopped] == [[], []]


def test_ranks_that_are_stopped_and_continued_together_go_on(story: Story) -> None:
    """As by Ctrl-Z in a terminal, and fg."""
    assert [rank.losses() for rank in story.stopped_together] == [[], []]


def test_a_rank_that_holds_the_interpreter_is_waited_for_and_named(story: Story) -> None:
    line = story.holding[0].expect("waiting for")
    assert line.startswith("waiting for ranks 1 and 2 for 60 s; rank 1 is alive (sleeping), ")
    assert "rank 2 is alive (running)" in line
    assert [rank.losses() for rank in story.holding] == [[], [], []]


def test_a_rank_that_cannot_be_heard_for_a_while_is_waited_for(story: Story) -> None:
    """As if its link was cut: it was stopped with its sentinel, and goes on."""
    first, second = story.cut
    first.expect("line nothing was heard of rank 1 for 2 s; after 60 s that is an error")
    first.expect("line now heard of rank 1")
    assert first.losses() == []
    second.signal(signal.SIGKILL)
    assert "has died" in first.expect("loss ")


def test_a_rank_whose_sentinel_is_killed_is_not_lost(story: Story) -> None:
    first, second = story.mute
    second.expect("line this rank's sentinel was lost; another one has taken its place")
    assert state_of(second.sentinel) == "X"  # not even a zombie
    assert first.complaints() == []
    second.signal(signal.SIGKILL)
    assert "PeerLost 1 rank 1 has died (process" in first.expect("loss ")


def test_a_rank_that_is_stopped_with_its_sentinel_is_frozen(story: Story) -> None:
    """As a container that is paused."""
    first, second = story.both_stopped
    assert "loss PeerFrozen 1 rank 1 has said nothing for 8 s" in first.expect("loss ")
    assert first.when("loss ") - story.both_stopped_at < NOTICED_S
    os.kill(second.sentinel, signal.SIGCONT)
    second.signal(signal.SIGCONT)
    assert second.expect("loss ").startswith(
        "loss PeerFailed 0 rank 0 has given up: rank 1 has said nothing for 8 s"
    )


def test_a_rank_that_is_stopped_with_its_sentinel_for_a_moment_goes_on(story: Story) -> None:
    assert [rank.complaints() for rank in story.both_stopped_for_a_moment] == [[], []]


def test_a_rank_that_is_killed_with_its_sentinel_is_named(story: Story) -> None:
    first, _, third = story.both_killed
    for rank in (first, third):
        assert "loss PeerLost 1 rank 1 has died, and its sentinel too" in rank.expect("loss ")
        assert rank.when("loss ") - story.both_stopped_at < NOTICED_S


def test_without_pidfd_and_proc_a_death_is_noticed_and_freezing_is_not(story: Story) -> None:
    first, second = story.stopped_unseen
    assert first.losses() == []
    second.signal(signal.SIGKILL)
    assert "PeerLost 1 rank 1 has died" in first.expect("loss ")
