"""Profiling an unedited script: it trains as ever, is ended, and nothing of ours stays behind."""

import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader
from typer.testing import CliRunner, Result

from bytelane.cli.main import app
from bytelane.errors import InputError, NotSupported
from bytelane.job import load
from bytelane.measure.record import Iteration
from bytelane.measure.result import Profile, make_profile
from bytelane.measure.script import ScriptFailed, profile_script

TRAINING = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))

def evaluate():
    model.eval()
    with torch.no_grad():
        model(data.tensors[0])
    model.train()

for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
    for inputs, targets in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9f}")
    evaluate()
print("through")
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_script(text: str) -> Path:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(text))
        return script

    return write_script


def profile(script: Path, *arguments: str, **changes: Any) -> Profile:
    settings: dict[str, Any] = {"iterations": 3, "warmup": 1, "say": lambda message: None}
    return profile_script(script, arguments, **(settings | changes))


def test_a_script_becomes_a_job(write: Any) -> None:
    found = profile(write(TRAINING))
    job = found.job
    assert job.name == "train"
    assert [layer.name for layer in job.layers] == ["0", "1", "3", "(loss)"]
    assert [(t.name, t.bytes, t.layers) for t in job.tensors] == [
        ("0.weight", 128, (0,)),
        ("0.bias", 32, (0,)),
        ("1.weight", 32, (1,)),
        ("1.bias", 32, (1,)),
        ("3.weight", 64, (2,)),
        ("3.bias", 8, (2,)),
    ]
    assert list(found.stages) == ["load", "forward", "loss", "backward", "update", "other"]
    assert job.compute_s == pytest.approx(found.iteration.median_s)


def test_it_trains_exactly_as_without_us_and_is_ended(
    write: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "3"])
    script = write(TRAINING)
    said: list[str] = []
    profile(script, say=said.append)
    watched = capsys.readouterr().out.splitlines()
    runpy.run_path(str(script))
    alone = capsys.readouterr().out.splitlines()
    assert watched == alone[: len(watched)]
    assert 7 <= len(watched) < 12
    assert said[0] == "found Sequential with 74 parameters and SGD; 7 iterations follow"


def test_nothing_of_ours_stays_behind(write: Any) -> None:
    def ours() -> list[Any]:
        return [
            list(modules._global_forward_pre_hooks),
            list(modules._global_forward_hooks),
            list(optimizers._global_optimizer_pre_hooks),
            list(optimizers._global_optimizer_post_hooks),
            torch.autograd.backward,
            dataloader._BaseDataLoaderIter.__next__,
            "to" in vars(torch.Tensor),
            "cuda" in vars(torch.Tensor),
            list(sys.argv),
            list(sys.path),
            sys.modules["__main__"],
        ]

    before = ours()
    profile(write(TRAINING))
    assert ours() == before
    with pytest.raises(ScriptFailed):
        profile(write(TRAINING.replace("loss.backward()", "loss.backward() / 0")))
    assert ours() == before


def test_the_script_sees_its_arguments_and_its_own_folder(write: Any, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    script = write("""
        import sys, beside
        sys.exit(f"{__name__} {sys.argv} {beside.WORD}")
    """)
    with pytest.raises(ScriptFailed) as failure:
        profile(script, "--lr", "0.1")
    assert str(failure.value) == f"__main__ {[str(script), '--lr', '0.1']} beside\n"
    assert failure.value.code == 1


def test_a_script_that_ends_early_is_profiled_with_a_note(write: Any) -> None:
    found = profile(write(TRAINING), "4", iterations=10)  # 20 steps instead of 23
    assert found.notes[0] == "the script ended after 18 of 21 iterations"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("print('hello')", "ended without training: no optimizer made two steps"),
        (TRAINING.replace("range(int", "range(1) if 1 else range(int"), "ended after 3 iterations"),
    ],
)
def test_too_little_training_is_a_sentence(write: Any, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        profile(write(text))


def test_a_script_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing.py: there is no such file"):
        profile(tmp_path / "missing.py")


LOOP = """
import torch
from torch import nn
{setup}
for step in range(100):
    {body}
"""
SETUP = "model, x = nn.Linear(4, 2), torch.ones(3, 4); "
SETUP += "opt = torch.optim.{}(model.parameters(), lr=0.1)"


@pytest.mark.filterwarnings("ignore:Using .torch.compile", "ignore:.torch.jit.script_method")
@pytest.mark.parametrize(
    ("optimizer", "body", "complaint"),
    [
        (
            "SGD",
            "model(x).sum().backward(); model(x).sum().backward(); opt.step()",
            "backward.. runs 2 times in an iteration",
        ),
        (
            "LBFGS",
            "opt.step(lambda: (lambda l: (l.backward(), l)[1])(model(x).square().sum()))",
            "step.closure. cannot be profiled yet",
        ),
        (
            "SGD",
            "nn.parallel.DistributedDataParallel(model)(x).sum().backward(); opt.step()",
            "leave the wrapper out in a run with one process",
        ),
        ("SGD", "torch.compile(model)(x).sum().backward(); opt.step()", "torch.compile hides"),
        (
            "SGD",
            "o = torch.optim.SGD([x.requires_grad_()]); model(x).sum().backward(); o.step()",
            "parameters of no module that was called",
        ),
    ],
)
def test_what_would_be_wrong_is_refused_whatever_the_script_catches(
    write: Any, tmp_path: Path, optimizer: str, body: str, complaint: str
) -> None:
    setup = SETUP.format(optimizer)
    if "Distributed" in body:
        setup += "; torch.distributed.init_process_group('gloo', rank=0, world_size=1, "
        setup += f"init_method='file://{tmp_path}/store')"
    text = LOOP.format(setup=setup, body=f"try: {body}\n    except Exception: pass")
    try:
        with pytest.raises(NotSupported, match=complaint):
            profile(write(text))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_an_except_that_catches_everything_cannot_train_on(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "try: opt.zero_grad(); model(x).sum().backward(); opt.step()\n    except: pass"
    text = LOOP.format(setup=SETUP.format("SGD") + "; start = model.bias[0].item()", body=body)
    found = profile(write(text + "\nprint(round((start - model.bias[0].item()) / 0.3))"))
    assert found.counted == 3
    # One step to find the model, one to begin with, one to warm up, and twice three.
    assert capsys.readouterr().out == "9\n"


def test_the_warm_up_does_not_count(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def count(name: str, iterations: Sequence[Iteration], *others: Any) -> Profile:
        seen.append(len(iterations))
        return make_profile(name, iterations, *others)

    monkeypatch.setattr("bytelane.measure.script.make_profile", count)
    profile(write(TRAINING), warmup=4)
    assert seen == [6]


def test_two_models_that_train_together_are_one_job(write: Any) -> None:
    setup = (
        "encoder, decoder = nn.Sequential(nn.Linear(4, 8)), nn.Linear(8, 2); x = torch.ones(3, 4)\n"
    )
    setup += "a, b = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (encoder, decoder))"
    body = "decoder(encoder(x)).sum().backward(); a.step(); b.step()"
    job = profile(write(LOOP.format(setup=setup, body=body))).job
    assert [layer.name for layer in job.layers] == ["Sequential.0", "Linear", "(loss)"]
    assert [tensor.layers for tensor in job.tensors] == [(0,), (0,), (1,), (1,)]


def test_copies_to_another_device_are_a_stage_of_their_own(write: Any) -> None:
    setup = SETUP.format("SGD")
    body = "x.to('meta'); x.to(torch.float64); model(x).sum().backward(); opt.step()"
    found = profile(write(LOOP.format(setup=setup, body=body)))
    assert "copy" in found.stages
    assert "copy" not in profile(write(LOOP.format(setup=setup, body=body[14:]))).stages


CHECKPOINTED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.c(checkpoint(self.b, self.a(x), use_reentrant={reentrant}))

model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(3, 4)).sum().backward()
    opt.step()
"""


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_runs_some_layers_again_but_does_not_call_them_again(
    write: Any, reentrant: bool
) -> None:
    job = profile(write(CHECKPOINTED.format(reentrant=reentrant))).job
    assert [layer.name for layer in job.layers] == ["a", "b", "c", "(loss)"]
    assert [tensor.layers for tensor in job.tensors] == [(0,), (0,), (1,), (1,), (2,), (2,)]


# --- from the command line ----------------------------------------------------------------------


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bytelane", *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_command_writes_a_job_file_that_can_be_simulated(write: Any, tmp_path: Path) -> None:
    write(TRAINING)
    done = run(tmp_path, "profile", "train.py", "100", "--iterations", "3", "--out", "job.toml")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^backward +[\d.]+ .?s", done.stdout, re.MULTILINE)
    assert "bytelane: found Sequential" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(load(tmp_path / "job.toml").tensors) == 6
    assert run(tmp_path, "simulate", "job.toml").returncode == 0


def invoke(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> Result:
    monkeypatch.chdir(folder)
    return CliRunner().invoke(app, ["profile", *arguments])


def test_the_json_is_clean_whatever_the_script_prints(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(TRAINING)
    done = invoke(monkeypatch, tmp_path, "train.py", "--iterations", "3", "--json")
    found = json.loads(done.stdout)
    assert found["job_file"] == "train.toml"
    assert (tmp_path / "train.toml").exists()
    assert sum(stage["ms"] for stage in found["stages"].values()) == pytest.approx(
        found["iteration_ms"]
    )


def test_an_error_of_the_script_is_shown_as_python_would_show_it(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(TRAINING.replace("optimizer.step()", "optimizer.step() + 1"))
    ours = invoke(monkeypatch, tmp_path, "train.py")
    python = [sys.executable, "train.py"]
    alone = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (ours.exit_code, alone.returncode) == (1, 1)
    assert ours.stderr == alone.stderr.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("def (", 1, "SyntaxError: "),
    ],
)
def test_the_exit_code_of_the_script_is_kept(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int, words: str
) -> None:
    write(text)
    done = invoke(monkeypatch, tmp_path, "train.py")
    assert done.exit_code == code
    assert words in done.stderr
    assert "bytelane" not in done.stderr


@pytest.mark.parametrize(
    ("out", "complaint"),
    [
        ("job.toml", "train.py ended without training"),
        ("job.txt", "job.txt: a job file ends in .toml or .json"),
        ("no/job.toml", "there is no folder no"),
    ],
)
def test_what_cannot_become_a_job_file_is_a_sentence(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, complaint: str
) -> None:
    write("pass")
    done = invoke(monkeypatch, tmp_path, "train.py", "--out", out)
    assert isinstance(done.exception, InputError)  # which main() turns into exit code 2
    assert complaint in str(done.exception)
