"""Frozen, slow, or not to be heard: real ranks, told apart over a few seconds."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from bytelane.runtime.watch.judge import Limits
from watched import QUICK, Rank, ranks, state_of

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

        holding[0].tell("progress", 1)
        holding[1].tell("hold", "asleep")
        holding[2].tell("hold", "busy")
        os.kill(cut[1].sentinel, signal.SIGSTOP)
        os.kill(mute[1].sentinel, signal.SIGKILL)
        for rank in (stopped[1], *stopped_together, stopped_unseen[1]):
            rank.signal(signal.SIGSTOP)
        os.killpg(frozen[1].pid, signal.SIGSTOP)  # all of its group, but that is not its sentinel
        frozen_at = time.monotonic()
        time.sleep(3.5)
        holding[0].tell("behind")
        os.kill(cut[1].sentinel, signal.SIGCONT)
        for rank in (stopped[1], *stopped_together):
            rank.signal(signal.SIGCONT)
        time.sleep(0.5)
        stopped[1].signal(signal.SIGSTOP)  # once more: stops do not add up
        frozen[0].expect("loss ")
        time.sleep(1.0)
        stopped[1].signal(signal.SIGCONT)
        holding[1].expect("done hold")
        holding[2].expect("done hold")
        yield Story(
            frozen, frozen_at, stopped, stopped_together, stopped_unseen, holding, cut, mute
        )


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
    """As if its link was cut: its sentinel was stopped, and goes on."""
    first, second = story.cut
    first.expect("line nothing was heard of rank 1 for 2 s; that is waited for until 60 s")
    first.expect("line now heard of rank 1")
    assert first.losses() == []
    second.signal(signal.SIGKILL)
    assert "has died" in first.expect("loss ")


def test_a_rank_that_cannot_be_heard_for_long_is_lost(story: Story) -> None:
    first, second = story.mute
    second.expect("line this rank's sentinel has ended")
    assert state_of(second.sentinel) == "X"  # not even a zombie
    assert first.expect("loss ").startswith(
        "loss PeerLost 1 rank 1 has not been heard of for 4 s: its host or network is gone"
    )
    assert len(first.lines("nothing was heard of rank 1")) == 1


def test_without_pidfd_and_proc_a_death_is_noticed_and_freezing_is_not(story: Story) -> None:
    first, second = story.stopped_unseen
    assert first.losses() == []
    second.signal(signal.SIGKILL)
    assert "PeerLost 1 rank 1 has died" in first.expect("loss ")
