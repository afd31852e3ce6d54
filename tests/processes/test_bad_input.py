"""Bad input: one sentence, exit code 2, at once; in the command line and in Python alike."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import bytelane
import fuzz
from bytelane import api
from bytelane.bench.script import Here
from bytelane.cli.scripts import require_not_prepared, require_script
from bytelane.core.cutting import MOST_PIECES
from bytelane.errors import InputError, NotSupported
from bytelane.interrupts import uninterrupted
from bytelane.job import Job, Layer, Tensor, load

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a verb in a folder with good, broken and strange files; return its code and sentence."""
    fuzz.furnish(tmp_path)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        ended = fuzz.run_here(fuzz.Case(arguments, (), ()))
        assert isinstance(ended.code, int)
        assert ended.err.count("\n") == (ended.code == 2)
        return ended.code, ended.err.removeprefix("bytelane: error: ").strip()

    return call


REFUSED = {
    "simulate vgg16 --workers 99999999999999999999": "99999999999999999999 workers are too many",
    "simulate vgg16 --workers 1000000000": "at most 100,000 will do",
    "simulate vgg16 --sync ps --servers 1000000000 --separate": "1000000000 servers are too many",
    "simulate vgg16 --partition 1B": "make 553,430,176 pieces of an iteration; at most 1,000,000",
    "simulate vgg16 --policy units --partition 1B": "units of 1 B make 553,430,208 pieces",
    f"simulate vgg16 --partition {fuzz.LONG}": "(4,400 characters) is not a size",
    f"simulate vgg16 --bandwidth {fuzz.LONG}Gbit": "(4,404 characters) is not a rate",
    f"simulate vgg16 --workers {fuzz.LONG}": "--workers: '99999",
    "simulate tensor.json": "make 268,435,456 pieces of an iteration",
    "simulate pipe.toml": "pipe.toml: is a named pipe, not a regular file",
    "simulate zero.json": "zero.json: is a device, not a regular file",
    "simulate folder.toml": "folder.toml: is a directory, not a regular file",
    "simulate sparse.json": "sparse.json: has 1024 GiB; at most 16 MiB are read",
    "simulate deep.toml": "deep.toml: not valid here: it is nested too deeply",
    "simulate keys.toml": "keys.toml: not valid here: a key has more than 50 dots",
    "simulate digits.toml": "digits.toml: not valid here: a number has too many digits",
    "timeline times.toml": "layers[0].forward_ms: is 1e+308; a time must be at most 1e+09 s",
    "simulate vgg16 --bandwidth 1e-30bit": "bandwidth: '1e-30bit' is too low a rate; 0.008",
    "simulate vgg16 --bandwidth 1e30Gbit": "'1e30Gbit' is too high a rate",
    "simulate vgg16 --latency 1e10s": "latency: '1e10s' is too long a time; at most 1e+09 s",
    "simulate vgg16 --slow 1e300": "a compute factor of 1e+300 is not possible",
    "simulate vgg16 --workers 100000 --slow 2": "times as much as is simulated; use fewer workers",
    "simulate vgg16 --workers 4000 --jitter 0.1": "4,000 workers that differ",
    "replay pipe.jsonl": "pipe.jsonl: is a named pipe",
    "replay /dev/zero": "/dev/zero: is a device",
    "replay empty.toml": "empty.toml: holds no round, so there is nothing to replay",
    "lab traffic --rate 1Gbit --load 5": "a load of 5.0 is not possible",
    "lab traffic --rate 1Gbit --load 0.2 --margin 9": "margins of 9 s leave nothing of 12 s",
    "lab traffic --rate 1Gbit --flows 1e300": "1e+300 flows per second are not possible",
    "lab run --rate 1Gbit --timeout 0s -- true": "a timeout of 0 s is not possible",
    "lab run --rate 1Gbit --traffic 5 -- true": "a load of 5.0 is not possible",
    "lab run --rate 1Gbit --schedule late.csv -- true": "step 1: at_s is 1e+300; a step must be",
    "lab run --rate 1Gbit --schedule deep.toml -- true": "deep.toml: not valid here: it is nested",
    "lab run --rate 1Gbit --schedule pipe.toml -- true": "pipe.toml: is a named pipe",
    "lab run --rate 1Gbit --traffic 0.1 --traffic-sizes pipe.toml -- true": "is a named pipe",
    "lab run --rate 1e9Gbit -- true": "a link of 1e+09 Gbit/s is not possible",
    "lab check --rate 1Gbit --seconds 1e300": "1e+300 seconds cannot be measured",
    "bench nosuch --real": "'nosuch' is neither one of cnn, gpt nor package.module:function",
    "bench os:getcwd --real --workers 2": "'os:getcwd' does not return a model",
    "bench nosuch:f --real --workers 2": "'nosuch:f' cannot be loaded: ModuleNotFoundError",
    "bench vgg16 --iterations 99999999999999999999": "iterations is 99999999999999999999",
    "try absent.py": "absent.py: there is no such file",
    "try .": ".: is a directory, not a regular file",
    "try prepared.py": "prepared.py, line 2: calls bytelane.prepare already",
    "try job.toml": "job.toml: is no Python script",
    "try pipe.jsonl": "pipe.jsonl: is a named pipe",
    "try script.py --iterations 99999999999999999999": "iterations is 99999999999999999999",
    "profile job.toml": "job.toml: is no Python script",
    "profile steps.csv": "steps.csv, line 2: is no Python script",
    "simulate vgg16 --workers abc": "--workers: 'abc' ",
    "simulate vgg16 --wrokers 2": "there is no option '--wrokers'; did you mean --workers?",
    "simulate": "missing argument 'JOB'",
    "simulat vgg16": "'simulat'",
    "lab ru": "'ru'",
    "simulate vgg17": "did you mean vgg1",
}


@pytest.mark.parametrize("line", REFUSED)
def test_it_is_refused_in_one_sentence_and_at_once(run: Run, line: str) -> None:
    Path("late.csv").write_text("at_s,rate\n1e300,1Gbit\n")
    began = time.process_time()
    code, said = run(*line.split())
    assert code == 2
    assert REFUSED[line] in said
    assert time.process_time() - began < 10  # without torch at hand it takes a second or two


def test_a_job_without_a_name_is_named(run: Run) -> None:
    assert run("simulate", "")[1].startswith("'' is neither a job file")


def test_a_model_that_cannot_be_trained_is_refused_before_there_are_ranks(run: Run) -> None:
    Path("stranger.py").write_text(
        "import torch\n"
        "def make():\n"
        "    net = torch.nn.Linear(3, 3)\n"
        "    return net, lambda g: (torch.ones(2, 3), torch.ones(2)), lambda out, target: out\n"
    )
    code, said = run("bench", "stranger:make", "--real", "--workers", "2")
    assert code == 2
    assert "'stranger:make' cannot be trained for a step: RuntimeError" in said


def test_the_zoo_answers_in_json_when_it_writes_a_job(run: Run) -> None:
    ended = fuzz.run_here(fuzz.Case(("zoo", "vgg16", "--json"), (), ()))
    assert '"job_file": "vgg16.toml"' in ended.out
    assert load("vgg16.toml").name == "vgg16"


@pytest.mark.parametrize("options", ["--nosuch", "--nnodes", "--help", "x.py"])
def test_torchrun_is_asked_for_its_options_before_it_is_started(options: str) -> None:
    with pytest.raises(InputError, match="torchrun does not take"):
        Here(2, options)


def test_a_script_with_both_ways_may_be_tried(tmp_path: Path) -> None:
    path = tmp_path / "both.py"
    path.write_text("import bytelane\nDistributedDataParallel\nbytelane.prepare(1, 2)\n")
    require_not_prepared(path, require_script(path))
    for call in ("import bytelane as b\nb.prepare(1)", "from bytelane import prepare as p\np(1)"):
        path.write_text(call)
        with pytest.raises(InputError, match=r"line 2: calls bytelane\.prepare already"):
            require_not_prepared(path, require_script(path))


@pytest.mark.parametrize("verb", ["bench vgg16", "overlay vgg16", "try script.py", "profile a.py"])
def test_without_torch_a_verb_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, said = run(*verb.split())
    assert (code, said[-36:]) == (2, "install it with: pip install 'bytelane[torch]'"[-36:])


@pytest.mark.parametrize("name", ["lightning", "accelerate"])
def test_without_torch_an_integration_says_what_to_install(name: str) -> None:
    code = f"import sys; sys.modules['torch'] = None\nimport bytelane.integrations.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"MissingExtra: this needs {name.title()}; install it with" in done.stderr


# In Python


@pytest.mark.parametrize(
    ("keywords", "why"),
    [
        ({"workers": "8"}, "workers is '8'; it must be a whole number"),
        ({"workers": True}, "workers is True"),
        ({"workers": 2.5}, "workers is 2.5"),
        ({"workers": 10**5000}, "a number of about 5000 digits workers are too many"),
        ({"nosuch": 1}, r"there is no argument nosuch \(it is 1\)"),
        ({"worker": 3}, r"there is no argument worker \(it is 3\); did you mean workers\?"),
        ({"bandwidth": 10}, "bandwidth: 10 has no unit"),
        ({"latency": None}, "latency: None is not a time"),
        ({"partition": 2.5}, "partition: 2.5 is not a whole number of bytes"),
        ({"partition": True}, "partition: 'True' is not a size"),
        ({"slow": "2"}, "slow is '2'; it must be a number"),
        ({"slow": float("nan")}, "a compute factor of nan"),
        ({"jitter": "x"}, "jitter is 'x'"),
        ({"jitter": 0.1, "seed": "3"}, "seed is '3'; it must be a whole number"),
        ({"policy": 5}, "policy is 5; it must be the name of one"),
        ({"barrier": "yes"}, "barrier is 'yes'; it must be True or False"),
        ({"sync": "ps", "servers": "2"}, "servers is '2'"),
        ({"sync": "ps", "separate": 1}, "separate is 1; it must be True or False"),
    ],
)
def test_simulate_names_the_argument_and_its_value(keywords: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        bytelane.simulate("vgg16", **keywords)


@pytest.mark.parametrize("job", [None, 5, b"vgg16", ["vgg16"]])
def test_what_is_no_job_is_refused(job: Any) -> None:
    with pytest.raises(InputError, match="a job is a Job, a name or a path"):
        api.simulate(job)


def test_prepare_names_the_argument_and_its_value() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrong: list[tuple[tuple[Any, Any], dict[str, Any], str]] = [
        (("model", optimizer), {}, "str is no torch.nn.Module"),
        ((optimizer, model), {}, "SGD is no torch.nn.Module"),
        ((model, None), {}, "NoneType is no torch.optim.Optimizer"),
        ((model, []), {}, "the list of optimizers is empty"),
        ((model, optimizer), {"timeout_s": "5"}, "timeout_s is '5'; it must be a number"),
        ((model, optimizer), {"timeout_s": -1}, "timeout_s is -1; it must be above 0"),
        ((model, optimizer), {"verify": "no"}, "verify is 'no'; it must be True or False"),
        ((model, optimizer), {"trace": 3}, "trace is 3; it must be the path of a file"),
        ((model, optimizer), {"policy": "fifo", "lanes": "2"}, "lanes is '2'"),
        ((model, optimizer), {"policy": "fifo", "barrier": 1}, "barrier is 1"),
        ((model, optimizer), {"policy": "p3", "partition": "x"}, "partition: 'x' is not a size"),
    ]
    for arguments, keywords, why in wrong:
        with pytest.raises((InputError, NotSupported), match=why):
            bytelane.prepare(*arguments, **keywords)
    with pytest.raises(InputError, match="credit: 'x' is not a size"):
        bytelane.replan(model, policy="p3", credit="x")


def test_as_many_pieces_as_are_possible_are_possible() -> None:
    def job(size: int) -> Job:
        return Job("j", (Layer("l", 1e-3, 1e-3),), (Tensor("t", size, (0,)),))

    with pytest.raises(InputError, match="1,000,001 pieces"):
        api.simulate(job(MOST_PIECES + 1), partition=1)
    policy = api.make_policy("bytescheduler", job(MOST_PIECES), api.make_cluster(), api.Knobs(1, 2))
    assert policy.cut(job(MOST_PIECES)).operation_count == MOST_PIECES


# Ctrl-C


def test_ctrl_c_ends_a_verb_while_it_compiles(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bytelane", "simulate", "vgg16", "--partition", "10kB"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BYTELANE_CACHE": str(tmp_path)},
    )
    assert process.stderr is not None
    assert "compiling the simulator" in process.stderr.readline()
    time.sleep(0.5)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert time.monotonic() - began < 10  # compiling alone takes longer


def test_what_must_not_be_interrupted_is_interrupted_when_it_ends() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ThreadPoolExecutor(1) as pool, uninterrupted():
        assert pool.submit(uninterrupted().__enter__).result() is None


# Whatever is typed


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(fuzz.cases(("simulate", "why", "zoo", "replay", "replay")))
def test_whatever_is_typed_is_answered_or_refused(
    tmp_path_factory: pytest.TempPathFactory, case: fuzz.Case
) -> None:
    folder = tmp_path_factory.getbasetemp() / "typed"
    if not folder.exists():
        folder.mkdir()
        fuzz.furnish(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ended = fuzz.run_here(case)
    assert not fuzz.complaint(case, ended, refused_s=60), ended


# --- the environment ------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "code"), [("zoo", 0), ("--version", 0), ("simulate nix", 2)])
def test_a_verb_may_be_started_without_output(words: str, code: int) -> None:
    command = f"exec {sys.executable} -m bytelane {words} >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.count("\n") == (code == 2)


def test_settings_that_matplotlib_refuses_are_told_in_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bytelane", "timeline", "vgg16", "--out", str(tmp_path / "t.png")],
        env={**os.environ, "MPLBACKEND": "nonsense"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("bytelane: error: matplotlib cannot be used: ")
    assert done.stderr.count("\n") == 1
