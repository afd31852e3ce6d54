"""``bytelane simulate``: the answers of the Python API, and one sentence for every mistake."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import bytelane
from bytelane.cli import main

JOB = """
name = "small"
outside_ms = 1.0
[[layers]]
name = "first"
forward_ms = 1.0
backward_ms = 2.0
update_ms = 0.5
bytes = "8MiB"
[[layers]]
name = "second"
forward_ms = 2.0
backward_ms = 4.0
bytes = "1MB"
"""


class Ran(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def values(self) -> dict[str, Any]:
        assert (self.code, self.stderr) == (0, "")
        found: dict[str, Any] = json.loads(self.stdout)
        return found


Run = Callable[..., Ran]


def plain(text: str) -> str:
    """Without colours, and without what the compiler of the simulator says the first time."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines(keepends=True)
    return "".join(line for line in lines if "compiling" not in line)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process: the same as a shell's, without starting Python."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["bytelane", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return Ran(int(left.value.code or 0), plain(out), plain(err))

    return run


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(JOB)
    return path


def in_a_shell(*arguments: object, stdout: int = subprocess.PIPE) -> Ran:
    script = Path(sys.executable).with_name("bytelane")
    # Buffered, as it is for everybody else.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [script, *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    return Ran(done.returncode, plain(done.stdout or ""), plain(done.stderr))


# Answers

OPTIONS: list[dict[str, Any]] = [
    {},
    {"policy": "fifo"},
    {"workers": 1},
    {"workers": 4, "bandwidth": "25Gbit", "overhead": "20us", "latency": "300us"},
    {"policy": "bytescheduler", "partition": "512KiB", "credit": "1MiB", "bandwidth": "1Gbit"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_json_holds_what_the_api_finds(run: Run, job: Path, options: dict[str, Any]) -> None:
    arguments = [part for key, value in options.items() for part in (f"--{key}", value)]
    values = run("simulate", job, *arguments, "--json").values
    found = bytelane.simulate(job, **options)
    assert values["iteration_ms"] == found.iteration_s * 1000
    assert values["compute_ms"] == found.compute_s * 1000
    assert values["compute_ms"] == pytest.approx(10.5)
    assert values["communication_ms"] == found.communication_s * 1000
    assert values["bound_ms"] == found.bound_s * 1000
    assert values["bound_ms"] <= values["iteration_ms"] * (1 + 1e-12)


def test_json_echoes_every_parameter_that_was_given(run: Run, job: Path) -> None:
    given = ["--workers", 4, "--bandwidth", "25Gbit", "--overhead", "20us", "--latency", "0.3ms"]
    knobs = ["--policy", "bytescheduler", "--partition", "2MiB", "--credit", "3MiB"]
    values = run("simulate", job, *given, *knobs, "--json").values
    assert values["job"] == "small"
    assert values["workers"] == 4
    assert values["bandwidth_bit_per_s"] == 25e9
    assert values["overhead_ms"] == pytest.approx(0.02)
    assert values["latency_ms"] == pytest.approx(0.3)
    assert (values["policy"], values["partition_bytes"]) == ("bytescheduler", 2 * 2**20)
    assert (values["credit_bytes"], values["barrier"]) == (3 * 2**20, False)
    assert (values["layers"], values["tensors"], values["operations"]) == (2, 2, 5)
    assert values["total_bytes"] == 8 * 2**20 + 10**6


def test_json_echoes_every_parameter_that_was_left_open(run: Run, job: Path) -> None:
    values = run("simulate", job, "--json").values
    assert (values["workers"], values["bandwidth_bit_per_s"]) == (2, 10e9)
    assert values["policy"] == "bytescheduler"
    assert (values["overhead_ms"], values["latency_ms"]) == (0, 0)
    assert (values["partition_bytes"], values["credit_bytes"]) == (4 * 2**20, 8 * 2**20)
    fifo = run("simulate", job, "--policy", "fifo", "--json").values
    assert (fifo["partition_bytes"], fifo["credit_bytes"], fifo["barrier"]) == (None, None, True)


def test_json_echoes_the_partition_of_a_job_without_tensors(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bare.json"
    path.write_text('{"name": "bare", "layers": [{"forward_ms": 1, "backward_ms": 1}]}')
    values = run("simulate", path, "--partition", "2MiB", "--json").values
    assert values["communication_ms"] == 0
    assert values["partition_bytes"] == 2 * 2**20


def test_the_window_is_two_partitions_unless_it_is_given(run: Run, job: Path) -> None:
    assert run("simulate", job, "--partition", "1MB", "--json").values["credit_bytes"] == 2 * 10**6


def test_one_worker_communicates_nothing(run: Run, job: Path) -> None:
    values = run("simulate", job, "--workers", 1, "--overhead", "1ms", "--json").values
    assert values["communication_ms"] == 0
    assert values["iteration_ms"] == pytest.approx(values["compute_ms"])


def test_text_says_the_same_to_people(run: Run, job: Path) -> None:
    code, out, err = run("simulate", job, "--policy", "fifo", "--bandwidth", "1Gbit")
    assert (code, err) == (0, "")
    assert "small: 9.389 MB in 2 tensors" in out
    assert "on 2 workers, 1 Gbit/s" in out
    assert re.search(r"compute +10\.5 ms", out)
    assert re.search(r"communication +75\.11 ms", out)


def test_the_trace_is_a_file_for_perfetto(run: Run, job: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert run("simulate", job, "--trace", path).code == 0
    spans = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    kinds = {span["cat"] for span in spans}
    assert kinds == {"forward", "backward", "update", "outside", "transfer"}
    sent = [e["args"] for e in spans if e["cat"] == "transfer" and e["args"]["iteration"] == 1]
    assert sum(transfer["bytes"] for transfer in sent) == 8 * 2**20 + 10**6


def test_the_trace_begins_at_zero(run: Run, job: Path, tmp_path: Path) -> None:
    run("simulate", job, "--trace", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert min(e["ts"] for e in events if e["ph"] == "X") >= 0


# Mistakes


def assert_one_sentence(ran: Ran) -> None:
    assert ran.code == 2
    assert ran.stdout == ""
    assert re.fullmatch(r"bytelane: error: [^\n]+\n", ran.stderr)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--workers 0", "0 workers cannot train"),
        ("--workers -1", "-1 workers cannot train"),
        ("--bandwidth 10GB", "rates are in bits"),
        ("--bandwidth 10", "has no unit"),
        ("--bandwidth 10gbit", "did you mean Gbit?"),
        ("--bandwidth 0Gbit", "cannot carry anything"),
        ("--bandwidth -1Gbit", "not negative"),
        ("--bandwidth nan", "'nan' is not a rate"),
        ("--policy fifos", "did you mean fifo?"),
        ("--policy x", "there are sequential, fifo, "),
        ("--policy fifo --partition 4MiB", "partition has no effect under policy fifo"),
        ("--policy fifo --credit 4MiB", "credit has no effect under policy fifo"),
        ("--partition 0", "it must be 1 or more"),
        ("--partition 4M", "'M' is not one of"),
        ("--credit -1B", "not negative"),
        ("--credit 0", "it must be 1 or more"),
        ("--overhead 5", "has no unit"),
        ("--latency 1h", "'h' is not one of"),
    ],
)
def test_a_bad_value_is_one_sentence(run: Run, job: Path, arguments: str, why: str) -> None:
    ran = run("simulate", job, *arguments.split())
    assert_one_sentence(ran)
    assert why in ran.stderr


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("absent.toml", None, "there is no such file"),
        ("job.yaml", "name: a", "neither a job file (.toml or .json)"),
        ("job.toml", "name = = 1", "line 1"),
        ("job.json", "{", "not valid JSON"),
        ("job.toml", "", "the file is empty"),
        ("job.toml", 'name = "a"\nlayers = []', "layers: is empty"),
        ("job.toml", JOB.replace("4.0", "-4.0"), "layers[1].backward_ms"),
    ],
)
def test_a_bad_file_is_one_sentence(
    run: Run, tmp_path: Path, name: str, content: str | None, why: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    ran = run("simulate", tmp_path / name)
    assert_one_sentence(ran)
    assert name in ran.stderr
    assert why in ran.stderr


@pytest.mark.parametrize("place", ["", "no/such/folder/trace.json"])
def test_a_trace_that_cannot_be_written_is_one_sentence(
    run: Run, job: Path, tmp_path: Path, place: str
) -> None:
    assert_one_sentence(run("simulate", job, "--trace", tmp_path / place))


@pytest.mark.parametrize(
    "arguments",
    ["--partition 1e30B", "--credit 1e30B", "--latency 1e308s", "--bandwidth 1e-300bit"],
)
def test_a_number_beyond_reason_is_one_sentence(run: Run, job: Path, arguments: str) -> None:
    assert_one_sentence(run("simulate", job, *arguments.split()))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("simulate", "JOB"),
        ("simulate {job} --workers many", "--workers"),
        ("simulate {job} --workers", "--workers"),
        ("simulate {job} --wrokers 2", "--wrokers"),
        ("simulate {job} another", "another"),
        ("imitate", "imitate"),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(
    run: Run, job: Path, arguments: str, named: str
) -> None:
    ran = run(*arguments.format(job=job).split())
    assert (ran.code, ran.stdout) == (2, "")
    assert named in ran.stderr
    assert "Traceback" not in ran.stderr


# In a shell


def test_in_a_shell_an_answer_is_json_and_nothing_else(job: Path) -> None:
    assert in_a_shell("simulate", job, "--json").values["job"] == "small"


def test_in_a_shell_a_mistake_is_one_sentence(job: Path) -> None:
    assert_one_sentence(in_a_shell("simulate", job, "--bandwidth", "10GB"))


def test_without_arguments_there_is_help() -> None:
    ran = in_a_shell()
    assert "Usage: bytelane" in ran.stdout
    assert "simulate" in ran.stdout
    assert ran.stderr == ""


def test_the_version_is_that_of_the_package() -> None:
    assert in_a_shell("--version") == (0, f"bytelane {bytelane.__version__}\n", "")


def test_a_reader_that_has_left_is_no_mistake(job: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        assert in_a_shell("simulate", job, stdout=pipe.fileno()).stderr == ""
