"""A rank is hurt at any moment from init_process_group on: nobody hangs, or ends without a word."""

import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bytelane.runtime.watch.radio import bind
from hurting import ENDING_S, SOON_S, STARTING_S, Event, Run, Zygote, draw, hurt, runs

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


def test_an_exit_code_is_kept(tmp_path: Path, zygote: Zygote) -> None:
    events = [(event("exit", knobs=knobs), 1.2) for knobs in ("bytescheduler", "dear", "fifo")]
    assert happening(events, tmp_path, zygote) == {}


def test_a_forked_child_ends_as_it_likes_and_training_goes_on(
    tmp_path: Path, zygote: Zygote
) -> None:
    run = Run(tmp_path, event("fork"), zygote)
    try:
        run.start()
        assert all(run.await_end(rank, SOON_S + ENDING_S) for rank in run.ranks)
        assert [run.code(rank) for rank in run.ranks] == [0, 0]
        child = run.note(1, "child")[1]
        deadline_s = time.monotonic() + SOON_S
        while runs(child) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not runs(child)
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
