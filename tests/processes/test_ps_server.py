"""A parameter server as a process: exact sums, credit, noise, refusals, keys and its end."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bytelane.runtime.ps.frames import (
    Beat,
    Heard,
    Push,
    Refused,
    Row,
    Say,
    Sum,
    Taken,
    decode_heard,
    encode,
)
from bytelane.runtime.ps.keys import Keys, keygen, load_keys
from ps_raw_client import RawWorker, ServerProcess, a_server, eventually, workers

pytestmark = pytest.mark.timeout(40)

ROWS = [Row("float32", 4 * 1000, 2), Row("float64", 8 * 10, 1), Row("int32", 4 * 7, 0)]
SMALL = [Row("float32", 4, place) for place in (3, 2, 1, 0)]
ONE = np.ones(1, dtype=np.float32).tobytes()


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with a_server() as one:
        yield one


def contribution(row: Row, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(scale=1e3, size=row.bytes)
    return values.astype(row.kind)[: row.bytes // np.dtype(row.kind).itemsize]


@pytest.mark.parametrize("world", [2, 3])
def test_sums_are_exact_in_rank_order_round_after_round(server: ServerProcess, world: int) -> None:
    chance = random.Random(world)
    with workers(server, world) as team:
        for worker in team:
            worker.layout(ROWS, credit_bytes=4000)
        for number in range(3):
            sent = [
                [contribution(row, 97 * number + rank) for row in ROWS] for rank in range(world)
            ]
            pushes = [(rank, k) for rank in range(world) for k in range(len(ROWS))]
            chance.shuffle(pushes)
            for rank, k in pushes:
                team[rank].push(number, k, sent[rank][k].tobytes())
            for rank, worker in enumerate(team):
                taken = [worker.receive("up", Taken)[0].operation for _ in ROWS]
                assert taken == [k for who, k in pushes if who == rank]
                for header, payload in [worker.take_sum() for _ in ROWS]:
                    total = sent[0][header.operation]
                    for other in sent[1:]:
                        total = total + other[header.operation]
                    assert payload == total.tobytes()
                    assert (header.round, header.used) == (number, b"\1")
        for worker in team:
            worker.leave()
        assert server.end() == {}


def test_no_more_is_sent_than_the_credit_allows_and_the_most_urgent_goes_next(
    server: ServerProcess,
) -> None:
    with workers(server, 1) as (worker,):
        worker.layout(SMALL, credit_bytes=8)
        for operation in range(len(SMALL)):
            worker.push(0, operation, ONE)
            worker.receive("up", Taken)
        first, second = (worker.receive("down", Sum)[0] for _ in range(2))
        assert [first.operation, second.operation] == [0, 1]
        assert not worker.hears("down", 0.3)
        worker.got(second)
        third, _ = worker.receive("down", Sum)
        assert third.operation == 3  # more urgent than 2, which was there before it
        assert not worker.hears("down", 0.1)
        worker.got(first)
        assert worker.receive("down", Sum)[0].operation == 2


def test_a_worker_that_does_not_acknowledge_stalls_nobody_and_loses_nothing(
    server: ServerProcess,
) -> None:
    with workers(server, 3) as team:
        *fast, slow = team
        for worker in team:
            worker.layout(SMALL, credit_bytes=4)
            for operation in range(len(SMALL)):
                worker.push(0, operation, ONE)
        held, _ = slow.receive("down", Sum)
        for worker in fast:
            assert {worker.take_sum()[0].operation for _ in SMALL} == {0, 1, 2, 3}
        for worker in fast:  # they are a round ahead
            for operation in range(len(SMALL)):
                worker.push(1, operation, ONE)
            assert [worker.receive("up", Taken)[0].round for _ in range(8)] == [0] * 4 + [1] * 4
        assert not slow.hears("down", 0.1)
        slow.got(held)
        later = [slow.take_sum() for _ in range(3)]
        assert {held.operation, *(header.operation for header, _ in later)} == {0, 1, 2, 3}
        assert all(payload == (3 * np.ones(1, dtype=np.float32)).tobytes() for _, payload in later)
        for operation in range(len(SMALL)):
            slow.push(1, operation, ONE)
        for worker in team:
            assert [worker.take_sum()[0].round for _ in SMALL] == [1] * 4


def test_a_worker_that_does_not_read_stalls_nobody_and_loses_nothing(
    server: ServerProcess,
) -> None:
    """Its sums are far more than socket buffers hold, and no credit limits them."""
    big = [Row("float32", 16 * 2**20, place) for place in range(4)]
    with workers(server, 2) as (reader, idle):
        payload = np.arange(4 * 2**20, dtype=np.float32)
        for worker in (reader, idle):
            worker.layout(big)
            for operation in range(len(big)):
                worker.push(0, operation, payload)
        for worker in (reader, idle):  # the second one has not looked until now
            for _ in big:
                _, got = worker.take_sum()
                assert got == (payload + payload).tobytes()


def test_sums_wait_for_a_worker_that_is_only_half_connected(server: ServerProcess) -> None:
    late = RawWorker(server.port, 0, 1)
    try:
        late.join("up")
        late.layout(SMALL)
        for operation in range(len(SMALL)):
            late.push(0, operation, ONE)
            late.receive("up", Taken)
        operations = [late.receive("down", Sum)[0].operation for _ in SMALL]
        assert operations == [0, 1, 2, 3]
    finally:
        late.close()


def test_an_exchange_tells_everyone_what_all_have_said(server: ServerProcess) -> None:
    with workers(server, 3) as team:
        for rank in (2, 0, 1):
            team[rank].send("up", Say("page", 0), b"rank %d" % rank)
        for worker in team:
            header, payload = worker.receive("down", Heard)
            assert header == Heard("page", 0)
            assert decode_heard(payload) == [b"rank 0", b"rank 1", b"rank 2"]


def test_two_thousand_malformed_messages_kill_nothing_and_are_counted(
    server: ServerProcess,
) -> None:
    chance = random.Random(4)
    with workers(server, 1) as (worker,):
        stranger = RawWorker(server.port, 5)
        worker.layout(SMALL)
        valid = bytes(encode(Push(1, 0, 1, b"\1"), ONE)[0])
        for number in range(500):
            noise = [chance.randbytes(chance.randint(0, 60)) for _ in range(chance.randint(1, 6))]
            cut = valid[: chance.randrange(len(valid))]
            worker.send_frames("up", [b"\xc1", *noise])  # 0xc1 begins no message
            worker.send_frames("down", [cut, ONE])
            stranger.send_frames("up", [b"\xc1", *noise])
            stranger.send("down", Beat(number))
        worker.push(0, 0, ONE)
        assert worker.take_sum()[1] == ONE
        stranger.send("up", stranger.asks(job="another"))
        assert stranger.receive("up", Refused)  # so all of its noise has been read
        stranger.send("down", stranger.asks(job="another"))
        assert stranger.receive("down", Refused)
        stranger.close()
        worker.leave()
        dropped = server.end()
    assert sum(dropped.values()) == 2000
    assert dropped["its sender has not joined"] == 500
    assert len(server.errors.splitlines()) < 100


def test_noise_with_and_without_a_key_kills_nothing_and_changes_no_sum() -> None:
    """``make soak`` sends a million of these."""
    script = Path(__file__).parents[1] / "soak/frames.py"
    command = [sys.executable, str(script), "--messages", "10000"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert run.returncode == 0, run.stderr
    assert "all sums exact" in run.stdout


def test_another_job_is_refused_with_a_sentence_and_the_first_goes_on(
    server: ServerProcess,
) -> None:
    with workers(server, 1) as (worker,):
        other = RawWorker(server.port, 0, 1)
        other.send("up", other.asks(job="another job"))
        (refused, _) = other.receive("up", Refused)
        assert refused.reason == (
            "this parameter server is in use by another job; start servers for each job"
        )
        other.close()
        worker.layout(SMALL)
        worker.push(0, 0, ONE)
        assert worker.take_sum()[1] == ONE


@pytest.mark.parametrize("change", [{"protocol": 2}, {"version": "9.9"}])
def test_another_version_is_refused_with_a_sentence_and_claims_no_server(
    server: ServerProcess, change: dict[str, object]
) -> None:
    other = RawWorker(server.port, 0, 1)
    other.send("up", other.asks(**change))
    (refused, _) = other.receive("up", Refused)
    assert refused.reason.endswith("install the same version everywhere")
    other.close()
    with workers(server, 1):
        pass


def test_it_ends_when_all_workers_have_left(server: ServerProcess) -> None:
    with workers(server, 2) as team:
        team[0].leave()
        team[1].send("up", Beat(7))
        assert team[1].receive("up", Beat)[0] == Beat(7)
        team[1].leave()
        assert server.end() == {}
        assert server.errors == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quietly(server: ServerProcess, number: int) -> None:
    with workers(server, 2):
        assert server.end(number) == {}
        assert server.errors == ""


def test_it_ends_with_its_parent() -> None:
    """The parent here is a shell that starts it, says its pid, and is killed."""
    start = (
        "import os, subprocess, sys; "
        "command = [sys.executable, '-m', 'bytelane.runtime.ps.process']; "
        "command += ['--listen', '127.0.0.1:0', '--parent', str(os.getpid())]; "
        "child = subprocess.Popen(command, "
        "stdout=subprocess.PIPE); "
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def has_ended() -> bool:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state == "Z"

    try:
        assert eventually(has_ended)
    finally:
        if not has_ended():
            os.kill(child, signal.SIGKILL)


def bytelane(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bytelane", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("which", [0, 1])
def test_a_taken_port_is_one_sentence(which: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = bytelane("ps", "serve", "--listen", f"127.0.0.1:{port - which}")
    assert ended.returncode == 2
    assert ended.stderr == (
        f"bytelane: error: 127.0.0.1:{port} is in use; a server needs its port and the next one, "
        "so choose others\n"
    )


@pytest.mark.parametrize(
    ("listen", "options", "sentence"),
    [
        ("nonsense", [], "'nonsense' is not an address"),
        ("192.0.2.1:5600", ["--plaintext"], "is not an address of this host"),
        ("0.0.0.0:5600", [], "bytelane ps keygen FOLDER"),
        ("127.0.0.1:0", ["--keys", "nowhere"], "there is no key nowhere/server.public"),
    ],
)
def test_a_mistake_is_one_sentence(listen: str, options: list[str], sentence: str) -> None:
    ended = bytelane("ps", "serve", "--listen", listen, *options)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert sentence in ended.stderr


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    assert bytelane("ps", "keygen", str(tmp_path / "keys")).returncode == 0
    return tmp_path / "keys"


def test_with_keys_everything_works(keys: Path) -> None:
    with (
        a_server("--keys", str(keys)) as server,
        workers(server, 2, load_keys(keys, "worker")) as team,
    ):
        assert server.ready["encrypted"]
        for worker in team:
            worker.layout(SMALL)
            worker.push(0, 0, ONE)
        for worker in team:
            assert worker.take_sum()[1] == np.array([2], dtype=np.float32).tobytes()
            worker.leave()
        assert server.end() == {}


def test_without_the_workers_key_nothing_is_read_or_answered(keys: Path, tmp_path: Path) -> None:
    keygen(tmp_path / "others")
    other, right = load_keys(tmp_path / "others", "worker"), load_keys(keys, "worker")
    wrong: list[Keys | None] = [
        None,  # no encryption
        other,  # keys of somebody else
        Keys(other.public, other.secret, right.peer),  # knows the server, which knows it not
    ]
    with a_server("--keys", str(keys)) as server:
        intruders = [RawWorker(server.port, rank, 3, one) for rank, one in enumerate(wrong)]
        for intruder in intruders:
            for side in ("up", "down"):
                intruder.send(side, intruder.asks())  # type: ignore[arg-type]
                intruder.send_frames(side, [b"noise"])  # type: ignore[arg-type]
        assert not any(one.hears("up", 0.3) or one.hears("down", 0.0) for one in intruders)
        with workers(server, 1, right) as (worker,):
            worker.leave()
            assert server.end() == {}  # nothing was dropped, because nothing was read
        for intruder in intruders:
            intruder.close()
