"""``bytelane sweep``: comma-separated lists in; a table, JSON, CSV and a picture out."""

import csv
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bytelane import api
from bytelane.cli import main, sweep_executor, sweep_settings
from bytelane.core import policies_for

JOB = """
name = "small"
[[layers]]
forward_ms = 1.0
backward_ms = 2.0
bytes = "8MB"
[[layers]]
forward_ms = 2.0
backward_ms = 4.0
bytes = "1MB"
"""
BYTELANE = Path(sys.executable).with_name("bytelane")


class Ran(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def answers(self) -> list[dict[str, Any]]:
        assert (self.code, self.stderr) == (0, "")
        found: list[dict[str, Any]] = json.loads(self.stdout)["answers"]
        return found


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["bytelane", "sweep", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return Ran(int(end.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(JOB)
    return path


# Lists


def test_every_answer_is_that_of_simulate(run: Run, job: Path) -> None:
    lists = ["--bandwidth", "1Gbit,2Gbit", "--workers", "2,4", "--overhead", "20us"]
    lists += ["--floor", "30ms"]
    policies = ["--policy", "fifo,bytescheduler", "--partition", "1MB,2MB"]
    answers = run(job, *lists, *policies, "--json").answers
    asked = [
        (workers, rate, policy, partition)
        for workers in (2, 4)
        for rate in ("1Gbit", "2Gbit")
        for policy, partition in (
            ("fifo", None),
            ("bytescheduler", "1MB"),
            ("bytescheduler", "2MB"),
        )
    ]
    assert len(answers) == len(asked)
    for answer, (workers, rate, policy, partition) in zip(answers, asked, strict=True):
        alone = api.simulate(
            job,
            policy=policy,
            partition=partition,
            workers=workers,
            bandwidth=rate,
            overhead="20us",
            floor="30ms",
        )
        assert (answer["policy"], answer["workers"]) == (policy, workers)
        assert answer["bandwidth_bit_per_s"] == alone.cluster.link.rate * 8
        assert answer["iteration_ms"] == alone.iteration_s * 1000
        assert answer["communication_ms"] == alone.communication_s * 1000
        assert answer["bound_ms"] == alone.bound_s * 1000
        assert answer["optimal_ms"] == alone.optimal_s * 1000


def values(answers: list[dict[str, Any]], *keys: str) -> list[Any]:
    found = [tuple(answer[key] for key in keys) for answer in answers]
    return found if len(keys) > 1 else [value for (value,) in found]


def test_a_list_may_be_given_in_several_pieces_and_with_spaces(run: Run, job: Path) -> None:
    answers = run(job, "--workers", "2, 4", "--workers", "8", "--json").answers
    assert values(answers, "workers") == [2, 4, 8]


@pytest.mark.parametrize(
    ("arguments", "key", "expected"),
    [
        ("--bandwidth 1Gbit,1000Mbit,2Gbit,1Gbit", "bandwidth_bit_per_s", [1e9, 2e9]),
        ("--workers 2,2", "workers", [2]),
        ("--slow 1,1.0,2", "slow_factor", [1.0, 2.0]),
        ("--partition 1000kB,1MB", "partition_bytes", [10**6]),
        ("--policy fifo,p3,fifo", "policy", ["fifo", "p3"]),
        ("--sync ps,ps", "sync", ["ps"]),
    ],
)
def test_a_value_given_twice_counts_once(
    run: Run, job: Path, arguments: str, key: str, expected: list[Any]
) -> None:
    assert values(run(job, *arguments.split(), "--json").answers, key) == expected


def test_all_means_every_policy_of_each_way_to_synchronise(run: Run, job: Path) -> None:
    answers = run(job, "--policy", "all", "--sync", "allreduce,ps", "--json").answers
    pairs = values(answers, "sync", "policy")
    assert len(pairs) == len(set(pairs))
    for sync in ("allreduce", "ps"):
        assert {policy for way, policy in pairs if way == sync} == set(policies_for(sync))


def test_servers_are_for_the_parameter_server_only(run: Run, job: Path) -> None:
    lists = ["--sync", "allreduce,ps", "--workers", "4", "--servers", "1,2", "--separate"]
    answers = run(job, *lists, "--json").answers
    assert values(answers, "sync", "servers", "colocated") == [
        ("allreduce", None, None),
        ("ps", 1, False),
        ("ps", 2, False),
    ]


def test_a_shared_link_is_for_the_parameter_server_only(run: Run, job: Path) -> None:
    answers = run(
        job, "--sync", "allreduce,ps", "--workers", "4", "--shared-link", "--json"
    ).answers
    assert values(answers, "sync", "shared_link") == [("allreduce", None), ("ps", True)]
    ring, shared = values(answers, "communication_ms")
    assert shared == pytest.approx(ring)


def test_several_jobs_are_told_apart_by_name_or_file(run: Run, job: Path, tmp_path: Path) -> None:
    other, again = tmp_path / "other.toml", tmp_path / "again.toml"
    other.write_text(JOB.replace("small", "other"))
    assert values(run(job, other, job, "--json").answers, "job") == ["small", "other"]
    again.write_text(JOB)
    assert values(run(job, again, "--json").answers, "job") == [str(job), str(again)]


def test_one_worker_is_legal(run: Run, job: Path) -> None:
    alone, two = run(job, "--workers", "1,2", "--json").answers
    assert alone["communication_ms"] == 0
    assert alone["iteration_ms"] == pytest.approx(alone["compute_ms"])
    assert two["communication_ms"] > 0


def test_a_model_of_the_zoo_has_its_accelerator_and_batch(run: Run) -> None:
    (slow,) = run("alexnet", "--batch", 64, "--json").answers
    (fast,) = run("alexnet", "--batch", 32, "--json").answers
    assert slow["compute_ms"] > fast["compute_ms"]


# What comes out


def test_the_table_shows_what_varies_and_says_the_rest_once(run: Run, job: Path) -> None:
    ran = run(job, "--bandwidth", "1Gbit,10Gbit", "--policy", "fifo,p3", "--latency", "1ms")
    assert (ran.code, ran.stderr) == (0, "")
    head, empty, titles, *rows = ran.stdout.splitlines()
    assert head == "4 settings: small, allreduce, workers 2, latency 1 ms, compute 9.0 ms"
    assert empty == ""
    assert titles.split() == [
        *("bandwidth", "policy", "iteration", "communication", "optimum", "fastest")
    ]
    assert [row.split()[2] for row in rows] == ["fifo", "p3", "fifo", "p3"]
    assert sum(row.endswith("*") for row in rows) == 2


def test_best_keeps_the_fastest_of_each_place(run: Run, job: Path) -> None:
    lists = ["--bandwidth", "1Gbit,10Gbit", "--policy", "all", "--overhead", "100us"]
    everything = run(job, *lists, "--json").answers
    best = run(job, *lists, "--best", "--json").answers
    assert best == [answer for answer in everything if answer["fastest"]]
    for kept in best:
        place = [a for a in everything if a["bandwidth_bit_per_s"] == kept["bandwidth_bit_per_s"]]
        real = [a["iteration_ms"] for a in place if a["policy"] != "optimal"]
        assert kept["iteration_ms"] == pytest.approx(min(real))
    table = run(job, *lists, "--best").stdout.splitlines()[2:]
    assert "fastest" not in table[0]
    assert len(table) == 3


def test_the_csv_file_says_the_same_as_the_json(run: Run, job: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("what was there before")
    lists = ["--policy", "fifo,p3", "--workers", "2,4", "--csv", path]
    answers = run(job, *lists, "--json").answers
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [list(row) for row in rows] == [list(answer) for answer in answers]
    for row, answer in zip(rows, answers, strict=True):
        assert row == {key: "" if v is None else str(v) for key, v in answer.items()}
        assert float(row["iteration_ms"]) == answer["iteration_ms"]


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_the_plot_is_a_picture(
    run: Run, job: Path, tmp_path: Path, name: str, begin: bytes
) -> None:
    ran = run(job, "--bandwidth", "1Gbit,2Gbit", "--policy", "all", "--plot", tmp_path / name)
    assert ran.code == 0
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_the_executor_changes_nothing(run: Run, job: Path) -> None:
    lists = ["--policy", "all", "--bandwidth", "1Gbit,3Gbit", "--sync", "allreduce,ps", "--json"]
    here = run(job, *lists, "--executor", "serial").stdout
    assert run(job, *lists).stdout == here
    assert run(job, *lists, "--executor", "processes").stdout == here


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--bandwidth 1Gbit,,2Gbit", "'1Gbit,,2Gbit' has an empty item"),
        ("--workers ,", "has an empty item"),
        ("--workers 2,many", "'many' is not a whole number"),
        ("--workers 2,0", "0 workers cannot train"),
        ("--bandwidth 1Gbit,0Gbit", "cannot carry anything"),
        ("--bandwidth 1Gbit,10GB", "rates are in bits"),
        ("--slow 1,fast", "'fast' is not a factor"),
        ("--slow 1,nan", "use more than 0"),
        ("--policy fifos,p3", "did you mean fifo?"),
        ("--policy fifo,fsdp --partition 1MiB", "partition has no effect under fifo or fsdp"),
        ("--policy all --sync ps --credit 0", "credit_bytes is 0"),
        ("--policy fifo,tic", "tic has no meaning for allreduce"),
        ("--policy tic --sync allreduce,ps", "allreduce has none of these policies"),
        ("--sync allreduce,ring", "use allreduce or ps"),
        ("--servers 2,4", "an all-reduce has no servers"),
        ("--separate", "an all-reduce has no servers"),
        ("--shared-link", "an all-reduce has no servers"),
        ("--sync ps --servers 1 --separate --shared-link", "a shared link is that of a worker"),
        ("--sync ps --workers 2,4 --servers 2", "use as many, or hosts of their own"),
        ("--executor ray", "use auto, serial, processes or dask://HOST:PORT"),
        ("--executor dask://127.0.0.1:1", "found no Dask scheduler at 127.0.0.1:1"),
        ("--plot a.pdf --workers 2,4", "ends in .svg or .png"),
        ("--plot a.svg --policy all", "several values of some number"),
        ("--batch 3", "accelerator and batch are for the zoo"),
    ],
)
def test_a_bad_value_is_one_sentence(run: Run, job: Path, arguments: str, why: str) -> None:
    ran = run(job, *arguments.split())
    assert (ran.code, ran.stdout) == (2, "")
    assert why in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_too_many_settings_are_counted_and_refused(
    run: Run, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lists(unit: str) -> str:
        return ",".join(f"{i}{unit}" for i in range(1, 101))

    every = ["--bandwidth", lists("Gbit"), "--overhead", lists("us"), "--latency", lists("us")]
    ran = run(job, *every, "--policy", "fifo,p3", "--partition", "1MB,2MB")
    assert (ran.code, ran.stdout) == (2, "")
    assert "these lists make 3,000,000 settings; a sweep has at most 1,000,000" in ran.stderr
    monkeypatch.setattr(sweep_settings, "LIMIT", 3)
    assert len(run(job, "--workers", "1,2,3", "--json").answers) == 3
    assert run(job, "--workers", "1,2,3,4").code == 2


@pytest.mark.parametrize("option", ["--csv", "--plot"])
@pytest.mark.parametrize("place", ["no/such/folder/a.png", "folder.png"])
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    run: Run,
    job: Path,
    tmp_path: Path,
    option: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(*_: object) -> None:
        raise AssertionError("this must not happen")

    (tmp_path / "folder.png").mkdir()
    monkeypatch.setattr(sweep_executor, "run_sweep", work)
    ran = run(job, "--workers", "2,4", option, tmp_path / place)
    assert (ran.code, ran.stdout) == (2, "")
    assert place in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_sweep_that_fails_leaves_files_as_they_were(run: Run, job: Path, tmp_path: Path) -> None:
    old, link = tmp_path / "old.csv", tmp_path / "link.svg"
    old.write_text("old")
    link.symlink_to(tmp_path / "not there.svg")
    lists = ["--workers", "2,4", "--executor", "dask://127.0.0.1:1"]
    assert run(job, *lists, "--csv", old, "--plot", link).code == 2
    assert old.read_text() == "old"
    assert link.is_symlink()
    assert not link.exists()


def test_without_matplotlib_there_is_the_command_that_installs_it(
    run: Run, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = run(job, "--workers", "2,4", "--plot", tmp_path / "a.png")
    assert ran.code == 2
    assert "pip install 'bytelane[plot]'" in ran.stderr


# In a shell


def test_help_teaches_with_examples_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['bytelane', 'sweep', '--help']\n"
        "from bytelane.cli import main\n"
        "try: main()\n"
        "finally: print(*sys.modules.keys() & {'matplotlib', 'distributed', 'numba', 'torch'})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("bytelane sweep ") == 3  # usage, and two examples
    assert "--bandwidth 5Gbit,10Gbit,25Gbit" in done.stdout
    assert done.stdout.splitlines()[-1] == ""


LONG = ["--policy", "p3", "--bandwidth", ",".join(f"{i}Mbit" for i in range(1000, 6000))]


def processes_in_group(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_whoever_interrupts_ends_all_processes(how: int, code: int) -> None:
    """Ctrl-C reaches the whole group; a kill only the first process."""
    sweep = subprocess.Popen(
        [BYTELANE, "sweep", "bert-large", *LONG, "--executor", "processes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The command, the tracker that Python starts, and a process for each core.
    wait_for(lambda: len(processes_in_group(sweep.pid)) >= 3)
    if how == signal.SIGINT:
        os.killpg(sweep.pid, how)
    else:
        sweep.kill()
    out, err = sweep.communicate(timeout=60)
    assert (sweep.returncode, out) == (code, "")
    assert how == signal.SIGKILL or err == ""
    wait_for(lambda: not processes_in_group(sweep.pid))


def test_progress_is_shown_to_a_terminal_and_to_nobody_else(job: Path) -> None:
    command = [BYTELANE, "sweep", job, "--workers", "2,4", "--json"]
    mine, its = pty.openpty()
    shown = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(mine, 4096):
                shown.extend(chunk)
        except OSError:  # how a terminal says that it was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    environment = os.environ | {"TERM": "xterm"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=its, env=environment, timeout=60)
    os.close(its)
    reader.join(timeout=10)
    os.close(mine)
    assert b"simulating" in shown
    assert len(json.loads(done.stdout)["answers"]) == 2
    quiet = subprocess.run(command, capture_output=True, timeout=60)
    assert (quiet.stdout, quiet.stderr) == (done.stdout, b"")
