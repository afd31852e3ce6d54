"""A rank is hurt at any moment from init_process_group on: nobody hangs, or ends without a word."""

import random
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bytelane.errors import PeerLost
from bytelane.runtime.liveness.udp import bind
from bytelane.runtime.sync.peers import name_failure
from hurting import (
    ENDING_S,
    SOON_S,
    STARTING_S,
    Event,
    Run,
    Zygote,
    draw,
    hurt,
)
from process_lookup import runs, sentinels_of
from watched import await_true

pytestmark = pytest.mark.timeout(240)

# About what a run of two ranks takes; moments beyond its end say nothing, and do no harm.
RUN_S = 2.0
EVENTS = 20
AT_ONCE = 5


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


def event(fault: str, *, victim: int = 1, world: int = 2, **how: object) -> Event:
    settings = {"at": 1.0, "knobs": "bytescheduler", "store": "file", **how}
    return Event(fault, victim=victim, world=world, **settings)  # type: ignore[arg-type]


def happening(
    events: list[tuple[Event, float]], folder: Path, zygote: Zygote
) -> dict[Event, list[str]]:
    """Let these happen, so many seconds after init_process_group; return what was wrong."""

    def happen(numbered: tuple[int, tuple[Event, float]]) -> list[str]:
        number, (one, after_s) = numbered
        (folder / str(number)).mkdir()
        return hurt(one, after_s, folder / str(number), zygote)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(happen, enumerate(events))
        return {one: wrong for (one, _), wrong in zip(events, found, strict=True) if wrong}


def test_a_rank_that_is_lost_before_it_enters_prepare_is_named(
    tmp_path: Path, zygote: Zygote
) -> None:
    """The victim takes half a second, in which the others wait for it."""
    events = [
        event(fault, late=True, victim=victim, world=world, store=store)
        for fault, victim, world, store in [
            ("kill", 1, 2, "file"),
            ("kill", 0, 2, "tcp"),  # which has the store
            ("kill", 2, 4, "tcp"),
            ("raise", 1, 2, "tcp"),
            ("exit", 3, 4, "file"),
        ]
    ]
    assert happening([(one, 0.25) for one in events], tmp_path, zygote) == {}


def test_ranks_are_hurt_at_any_moment(tmp_path: Path, zygote: Zygote) -> None:
    chance = random.Random(2)
    events = [draw(chance, chance.choice([2, 2, 2, 4])) for _ in range(EVENTS)]
    without_launcher = [one for one in events if one.store != "torchrun"]
    assert happening([(one, one.at * RUN_S) for one in without_launcher], tmp_path, zygote) == {}


def test_an_exit_code_is_kept_while_operations_are_in_flight(
    tmp_path: Path, zygote: Zygote
) -> None:
    """Each runs a few times: what went wrong there did not always."""
    runs_of = []
    for number, knobs in enumerate(["bytescheduler", "dear", "fifo", "bytescheduler", "dear"]):
        (tmp_path / str(number)).mkdir()
        run = Run(tmp_path / str(number), event("exit in flight", knobs=knobs), zygote)
        runs_of.append(run)
    try:
        for run in runs_of:
            run.start()
        for run in runs_of:
            assert all(run.await_end(rank, SOON_S + ENDING_S) for rank in run.ranks)
        assert [[run.code(rank) for rank in run.ranks] for run in runs_of] == [[1, 3]] * 5
        for run in runs_of:
            when_s, end = run.note(0, "ended")
            assert (end["error"], end["peer"]) == ("PeerLost", 1)
            assert when_s - run.note(1, "hurt")[0] < SOON_S
    finally:
        for run in runs_of:
            run.end()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("exit while planning", "PlanMismatch"),
        ("exit while ranks agree", "PeerFailed"),
        ("exit while waiting", "PeerFailed"),
    ],
)
def test_a_script_that_ends_while_others_count_on_it_keeps_its_exit_code_and_the_others_know(
    tmp_path: Path, zygote: Zygote, fault: str, error: str
) -> None:
    """It has counted the operation that the others wait for, so its leaving looks regular."""
    run = Run(tmp_path, event(fault, victim=0, knobs="auto"), zygote)
    try:
        run.start()
        assert all(run.await_end(rank, SOON_S + ENDING_S) for rank in run.ranks)
        assert [run.code(rank) for rank in run.ranks] == [3, 1]
        when_s, end = run.note(1, "ended")
        assert end["error"] == error
        assert "rank 0" in end["message"]
        assert when_s - run.note(0, "hurt")[0] < SOON_S / 2
    finally:
        run.end()


def test_the_harness_finds_the_sentinels_that_it_is_to_hurt(tmp_path: Path, zygote: Zygote) -> None:
    """Otherwise 4 of its 10 faults would do nothing, and these tests would pass."""
    run = Run(tmp_path, event("nothing"), zygote)
    try:
        run.start()
        for rank in run.ranks:
            pid = run.note(rank, "began")[1]
            assert await_true(lambda pid=pid: len(sentinels_of(pid)) == 1, SOON_S)
    finally:
        run.end()


def test_a_rank_that_freezes_while_ranks_agree_in_prepare_is_named(
    tmp_path: Path, zygote: Zygote
) -> None:
    """Its connections stay open, and there is no session yet that would break them."""
    run = Run(tmp_path, event("freeze while ranks agree"), zygote)
    try:
        run.start()
        assert run.await_end(0, SOON_S + ENDING_S)  # and it does not hang at exit
        when_s, end = run.note(0, "ended")
        assert (end["error"], end["peer"]) == ("PeerFrozen", 1)
        assert when_s - run.note(1, "hurt")[0] < SOON_S
        assert run.code(0) == 1
    finally:
        run.send(signal.SIGKILL, sentinel=True)
        run.end()


def test_a_forked_child_ends_as_it_likes_and_training_goes_on(
    tmp_path: Path, zygote: Zygote
) -> None:
    run = Run(tmp_path, event("fork"), zygote)
    try:
        run.start()
        assert await_true(lambda: run.has(1, "child"), STARTING_S)
        child = run.note(1, "child")[1]
        assert await_true(lambda: not runs(child), SOON_S)
        assert all(run.await_end(rank, SOON_S + ENDING_S) for rank in run.ranks)
        assert [run.code(rank) for rank in run.ranks] == [0, 0]
    finally:
        run.end()


def test_hosts_that_have_only_ipv6_can_train(tmp_path: Path, zygote: Zygote) -> None:
    try:
        bind("::1").close()
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    run = Run(tmp_path, event("nothing", store="ipv6"), zygote)
    try:
        run.start()
        assert all(run.await_end(rank, STARTING_S) for rank in run.ranks)
        assert [run.code(rank) for rank in run.ranks] == [0, 0]
    finally:
        run.end()


class OneHasLeft:
    """Peers of whom none is lost, but one has ended in order."""

    def loss(self, wait_s: float = 0.0) -> None:
        return None

    def left(self) -> list[int]:
        return [2]


def test_a_rank_that_has_left_is_named_by_the_transfer_that_it_has_cut() -> None:
    error = name_failure(RuntimeError("Read error"), OneHasLeft())  # type: ignore[arg-type]
    assert isinstance(error, PeerLost)
    assert error.rank == 2
