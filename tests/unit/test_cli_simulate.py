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
from bytelane.sim.slack import layer_slack

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
    {"floor": "2ms", "policy": "fusion"},
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
    given += ["--floor", "0.5ms"]
    knobs = ["--policy", "bytescheduler", "--partition", "2MiB", "--credit", "3MiB"]
    values = run("simulate", job, *given, *knobs, "--json").values
    assert values["job"] == "small"
    assert values["workers"] == 4
    assert values["bandwidth_bit_per_s"] == 25e9
    assert values["overhead_ms"] == pytest.approx(0.02)
    assert values["latency_ms"] == pytest.approx(0.3)
    assert values["floor_ms"] == 0.5
    assert (values["policy"], values["partition_bytes"]) == ("bytescheduler", 2 * 2**20)
    assert (values["credit_bytes"], values["barrier"]) == (3 * 2**20, False)
    assert (values["layers"], values["tensors"], values["operations"]) == (2, 2, 5)
    assert values["total_bytes"] == 8 * 2**20 + 10**6


def test_json_echoes_every_parameter_that_was_left_open(run: Run, job: Path) -> None:
    values = run("simulate", job, "--json").values
    assert (values["workers"], values["bandwidth_bit_per_s"]) == (2, 10e9)
    assert values["policy"] == "bytescheduler"
    assert (values["overhead_ms"], values["latency_ms"], values["floor_ms"]) == (0, 0, 0)
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


# Who waits, who is idle, what links carry


def test_json_holds_the_slack_of_every_layer_and_null_without_a_tensor(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "three.toml"
    path.write_text(JOB + '[[layers]]\nname = "third"\nforward_ms = 1.0\nbackward_ms = 1.0\n')
    values = run("simulate", path, "--bandwidth", "1Gbit", "--json").values
    slack = layer_slack(bytelane.simulate(path, bandwidth="1Gbit"))
    assert values["layer_slack_ms"] == [*(1000 * slack.slack_s).tolist(), None]
    assert values["layer_budget_ms"] == [*(1000 * slack.budget_s).tolist(), None]
    # The first layer is updated when loading data, 1 ms after its gradient, is over.
    assert values["layer_budget_ms"][0] == pytest.approx(1.0)
    assert values["layer_slack_ms"][0] == 0


def test_json_holds_idle_times_of_every_worker_and_bytes_of_every_kind_of_host(
    run: Run, job: Path
) -> None:
    given = ["--sync", "ps", "--separate", "--servers", 2, "--workers", 4, "--slow", 2]
    values = run("simulate", job, *given, "--json").values
    for busy, key in (("compute_ms", "compute_idle_ms"), ("communication_ms", "link_up_idle_ms")):
        assert len(values[key]) == 4
        assert values[key][3] == pytest.approx(values["iteration_ms"] - values[busy])
    assert values["compute_idle_ms"][0] > values["compute_idle_ms"][3]
    total = values["total_bytes"]
    assert [(link["host"], link["hosts"]) for link in values["links"]] == [
        ("worker", 4),
        ("server", 2),
    ]
    assert [link["up_bytes"] for link in values["links"]] == [total, 2 * total]
    for link in values["links"]:
        could = values["bandwidth_bit_per_s"] / 8 * values["iteration_ms"] / 1000
        assert link["down_used_percent"] == pytest.approx(100 * link["down_bytes"] / could)


def test_the_optimum_has_idle_times_and_bytes_but_no_slack(run: Run, job: Path) -> None:
    values = run("simulate", job, "--policy", "optimal", "--json").values
    assert (values["layer_slack_ms"], values["layer_budget_ms"]) == (None, None)
    assert values["layer_slack_spread_ms"] is None
    assert values["links"][0]["up_bytes"] == values["total_bytes"]
    assert values["compute_idle_ms"][0] == pytest.approx(
        values["iteration_ms"] - values["compute_ms"]
    )


def test_layers_are_shown_as_a_table(run: Run, job: Path) -> None:
    values = run("simulate", job, "--layers", "--json").values
    tables = values["layer_table"], values["tensor_table"]
    assert [[row.get("layer", row.get("tensor")) for row in t] for t in tables] == [
        ["first", "second"],
        ["first", "second"],
    ]
    for row in [*tables[0], *tables[1]]:
        assert row["budget_ms"] == pytest.approx(row["needed_ms"] - row["ready_ms"])
        assert row["slack_ms"] == pytest.approx(row["used_ms"] - row["arrived_ms"])
    out = run("simulate", job, "--layers").stdout
    table = [line.split() for line in out.splitlines()[-3:]]
    assert table[0] == [
        "layer", "forward", "backward", "bytes", "ready", "arrived", "needed", "used", "budget",
        "slack",
    ]  # fmt: skip
    first = tables[0][0]
    assert table[1] == ["first", "1.000", "2.000", str(8 * 2**20)] + [
        f"{first[f'{title}_ms']:.3f}" for title in table[0][4:]
    ]


def test_with_jitter_the_output_says_that_it_shows_means_and_how_far_they_spread(
    run: Run, job: Path
) -> None:
    given = ["--workers", 4, "--bandwidth", "1Gbit", "--layers"]
    steady, shaken = (run("simulate", job, *given, *more) for more in ([], ["--jitter", 0.1]))
    assert "means" not in steady.stdout
    assert "idle times and waits are means over 31 iterations" in shaken.stdout
    assert "Times in ms, mean and spread over iterations;" in shaken.stdout
    assert [row.split()[-1] for row in shaken.stdout.splitlines()[-3:-1]] == ["spread", "0.000"]
    values = run("simulate", job, *given, "--jitter", 0.1, "--json").values
    assert values["means_over_iterations"] == 31
    for resource in ("compute", "link_up", "link_down"):
        assert len(values[f"{resource}_idle_spread_ms"]) == 4
        assert min(values[f"{resource}_idle_spread_ms"]) > 0
    assert values["layer_slack_spread_ms"] == [
        row["slack_spread_ms"] for row in values["layer_table"]
    ]
    assert max(values["layer_slack_spread_ms"]) > 0
    calm = run("simulate", job, *given, "--json").values
    assert calm["means_over_iterations"] == 1
    assert not any(calm["compute_idle_spread_ms"] + calm["layer_slack_spread_ms"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--policy fifo --bandwidth 1Gbit", "at the barrier, until all tensors are there"),
        ("--bandwidth 1Gbit", "computing waits 72.11 ms before first, and before no other layer"),
        ("--bandwidth 1Gbit --policy fifo --no-barrier --sync ps --latency 1ms", "before first"),
        ("--policy p3 --bandwidth 1Gbit --latency 1ms", "computing waits before 2 of 2 layers"),
        ("--bandwidth 400Gbit", "computing never waits; the least slack is "),
        ("--slow 2 --bandwidth 1Gbit", "the first worker's computing waits"),
        ("--bandwidth 1Gbit", "the link of a worker carries 9.389 MB each way, "),
        ("--sync ps", "the link of a worker with server carries 9.389 MB each way, "),
    ],
)
def test_text_says_in_words_who_waits_for_whom(
    run: Run, job: Path, arguments: str, said: str
) -> None:
    ran = run("simulate", job, *arguments.split())
    assert (ran.code, ran.stderr) == (0, "")
    assert said in ran.stdout


def test_what_goes_up_in_two_messages_may_come_down_in_one(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "four.json"
    layers = [
        {"forward_ms": 0, "backward_ms": backward, "bytes": size}
        for backward, size in ((125, 1), (125, 1), (500, 0), (125, 4))
    ]
    path.write_text(json.dumps({"name": "four", "layers": layers}))
    link = ["--bandwidth", "32bit", "--overhead", "125ms"]
    out = run("simulate", path, "--sync", "ps", "--policy", "fusion", *link).stdout
    assert "the link is idle 625 ms up, 750 ms down" in out


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
        ("--seed 1", "a seed has no effect without jitter"),
        ("--policy optimal --layers", "neither transfers nor slack"),
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
