"""The verbs that look at a job from several sides: compare, why, timeline, zoo."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bytelane import api
from bytelane.cli import main
from bytelane.core import policies_for
from bytelane.job import load, zoo

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bytelane", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


@pytest.mark.parametrize("sync", ["allreduce", "ps"])
def test_compare_shows_every_policy_and_agrees_with_simulate(run: Run, sync: str) -> None:
    code, out, _ = run("compare", "alexnet", "--sync", sync, "--workers", 4, "--json")
    assert code == 0
    rows = {row["policy"]: row for row in json.loads(out)["policies"]}
    assert set(rows) == set(policies_for(sync))
    assert rows["fifo"]["gain_over_fifo_percent"] == 0
    for name, row in rows.items():
        alone = api.simulate("alexnet", policy=name, sync=sync, workers=4)
        assert row["iteration_ms"] == alone.iteration_s * 1000
        assert row["iteration_ms"] >= rows["optimal"]["iteration_ms"] - 1e-9


def test_compare_prints_the_fastest_first(run: Run) -> None:
    _, out, _ = run("compare", "vgg16", "--workers", 4, "--bandwidth", "25Gbit")
    times = [float(line.split()[1]) for line in out.splitlines()[3:]]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_compare_gives_no_sign_to_what_is_rounded_to_nothing(run: Run) -> None:
    given = ["compare", "resnet50", "--workers", 4, "--bandwidth", "100Gbit"]
    gains = [
        row["gain_over_fifo_percent"] for row in json.loads(run(*given, "--json")[1])["policies"]
    ]
    assert any(-0.05 < gain < 0 for gain in gains)
    _, out, _ = run(*given)
    assert "+0.0 %" in out
    assert "-0.0 %" not in out


def test_servers_that_share_the_workers_links_take_as_long_as_an_all_reduce(run: Run) -> None:
    given = ["simulate", "vgg16", "--workers", 4, "--json"]
    ring, usual, shared = (
        json.loads(run(*given, *more)[1])
        for more in ((), ("--sync", "ps"), ("--sync", "ps", "--shared-link"))
    )
    assert shared["communication_ms"] == pytest.approx(ring["communication_ms"])
    assert usual["communication_ms"] == pytest.approx(ring["communication_ms"] / 2)
    assert (ring["shared_link"], usual["shared_link"], shared["shared_link"]) == (None, False, True)
    # What the usual model forgets: twice what a link could carry in that time.
    assert usual["links"][0]["up_used_percent"] > 100 >= shared["links"][0]["up_used_percent"]
    code, _, err = run("simulate", "vgg16", "--shared-link")
    assert code == 2
    assert err == "bytelane: error: an all-reduce has no servers; leave them out, or use sync ps\n"


def test_compare_draws_what_it_prints(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("compare", "alexnet", "--plot", tmp_path / "bars.svg")
    assert code == 0
    assert out == run("compare", "alexnet")[1]
    assert "<svg" in (tmp_path / "bars.svg").read_text()


def test_why_adds_up(run: Run) -> None:
    code, out, _ = run("why", "vgg16", "--policy", "fifo", "--json")
    found = json.loads(out)
    assert code == 0
    assert sum(part["duration_ms"] for part in found["path"]) == pytest.approx(
        found["iteration_ms"]
    )


def test_why_explains_in_five_lines(run: Run) -> None:
    _, out, _ = run("why", "resnet50", "--policy", "p3", "--overhead", "50us", "--latency", "80us")
    table = out.split("\n\n")[1].splitlines()
    assert 2 <= len(table) <= 6


def test_a_timeline_is_a_picture_and_a_trace_of_every_policy(run: Run, tmp_path: Path) -> None:
    picture, trace = tmp_path / "lines.png", tmp_path / "lines.json"
    arguments = ["--policy", "fifo, bytescheduler,fifo", "--out", picture, "--trace", trace]
    code, out, err = run("timeline", "alexnet", *arguments)
    assert (code, err) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    events = json.loads(trace.read_text())["traceEvents"]
    shown = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert shown == ["fifo", "bytescheduler"]
    assert [line.split(":")[0] for line in out.splitlines()[:-1]] == shown
    assert f"see {picture}, or drop {trace}" in out


def test_a_timeline_tells_its_numbers_and_gives_knobs_to_those_that_use_them(
    run: Run, tmp_path: Path
) -> None:
    arguments = ["--partition", "1MiB", "--workers", 4, "--sync", "ps", "--json"]
    _, out, _ = run("timeline", "alexnet", "--out", tmp_path / "a.svg", *arguments)
    found = json.loads(out)
    alone = [
        api.simulate("alexnet", workers=4, sync="ps", policy="fifo"),
        api.simulate("alexnet", workers=4, sync="ps", partition="1MiB"),
    ]
    rows = found["policies"]
    assert [row["policy"] for row in rows] == ["fifo", "bytescheduler"]
    assert [row["iteration_ms"] for row in rows] == [one.iteration_s * 1000 for one in alone]
    assert found["picture"] == str(tmp_path / "a.svg")


@pytest.mark.parametrize("verb", ["simulate", "why", "timeline"])
def test_a_barrier_can_be_added_wherever_a_policy_is_chosen(
    run: Run, tmp_path: Path, verb: str
) -> None:
    more = ["--out", tmp_path / "a.svg"] if verb == "timeline" else []
    arguments = [verb, "alexnet", "--policy", "p3", "--json", *more]
    free, held = (
        json.loads(run(*arguments, barrier)[1]) for barrier in ("--no-barrier", "--barrier")
    )
    times = [(one["policies"][0] if more else one)["iteration_ms"] for one in (free, held)]
    assert times[0] < times[1]


@pytest.mark.parametrize("verb", ["simulate", "compare", "why", "timeline"])
def test_help_shows_every_option_of_the_groups(
    run: Run, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = run(verb, "--help")
    for option in ("--accelerator", "--workers", "--bandwidth", "--sync", "--slow", "--json"):
        assert option in out
    assert ("--partition" in out) == (verb != "compare")
    assert "[default: (as many as workers)]" in out


def test_the_zoo_lists_every_model(run: Run) -> None:
    _, out, _ = run("zoo", "--json")
    assert [row["name"] for row in json.loads(out)] == list(zoo.names())
    _, out, _ = run("zoo")
    assert "25,557,032" in out


def test_a_model_becomes_a_job_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    code, _, _ = run("zoo", "alexnet", "--out", path, "--batch", 8)
    assert code == 0
    assert load(path).total_bytes == zoo.make("alexnet").total_bytes


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("simulate resnet5O", "did you mean resnet50?"),
        ("simulate resnet50 --accelerator v1000", "did you mean v100"),
        ("simulate resnet50 --batch 0", "batch of 0"),
        ("simulate thesis-4 --batch 8", "would have no effect"),
        ("simulate resnet50 --sync ring", "use allreduce or ps"),
        ("simulate resnet50 --servers 2", "an all-reduce has no servers"),
        ("simulate resnet50 --sync ps --servers 0", "servers is 0"),
        ("simulate resnet50 --sync ps --servers 3", "use as many, or hosts of their own"),
        ("simulate resnet50 --policy tac", "no meaning for allreduce"),
        ("simulate resnet50 --policy optimal --barrier", "has no barrier"),
        ("simulate resnet50 --policy optimal --trace x.json", "no trace"),
        ("simulate resnet50 --jitter -1", "makes no sense"),
        ("simulate resnet50 --slow 0", "use more than 0"),
        ("compare nowhere.toml", "there is no such file"),
        ("compare nowhere.toml --plot bars.jpg", "ends in .svg or .png"),
        ("timeline nowhere.toml --out lines.pdf", "ends in .svg or .png"),
        ("timeline resnet50 --out no/such/folder/lines.svg", "No such file or directory"),
        ("timeline resnet50 --policy fifo,optimal", "neither transfers nor slack"),
        ("timeline resnet50 --policy fifo,nonsense", "there is no policy 'nonsense'"),
        ("timeline resnet50 --policy fifo,tac", "tac has no meaning for allreduce"),
        ("timeline resnet50 --policy fifo,dear --partition 1MiB", "partition has no effect"),
        ("timeline resnet50 --iterations 0", "use 1 to 20"),
        ("why resnet50 --policy optimal", "no critical path"),
        ("zoo resnet51", "did you mean resnet50"),
        ("zoo --batch 3", "go with the name of a model"),
    ],
)
def test_bad_input_is_one_sentence(run: Run, arguments: str, complaint: str) -> None:
    code, out, err = run(*arguments.split())
    assert code == 2
    assert out == ""
    assert complaint in err
    assert err.count("\n") == 1
