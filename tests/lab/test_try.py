"""``bytelane try`` from end to end: real scripts in real processes."""

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from bytelane.bench.script import (
    Here,
    Trial,
    run_trial,
)
from bytelane.bench.script.folder import RunFolder
from bytelane.bench.script.trial import (
    DDP,
    Errand,
)
from bytelane.cli import main
from bytelane.errors import InputError

TRAINING = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100000):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,)))
    loss.backward()
    optimizer.step()
    schedule.step()
print("through")
"""


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    def call(text: str, *arguments: object) -> tuple[int, str, str]:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(text))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        monkeypatch.setattr(sys, "argv", ["bytelane", "try", "train.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


IN_LAB = ("--mode", "pacing", "--rate", "200Mbit")


@pytest.mark.timeout(300)  # four runs, each with new processes
def test_an_unedited_script_is_tried_from_end_to_end(run: Run, tmp_path: Path) -> None:
    short = ("--iterations", 12, "--repetitions", 1, "--json")
    code, out, err = run(TRAINING, *IN_LAB, *short)
    assert code == 0, err
    found = json.loads(out)
    assert found["steps"] == 12
    assert found["weights_largest_difference"] == 0
    assert found["ranks_agree"] is True
    assert found["gradient_bytes"] == 4 * (4 * 8 + 8 + 16 + 16 + 2)
    assert found["wrapped_at"] == [{"file": "train.py", "number": 10, "text": "model = DDP(net)"}]
    assert [one["name"] for one in found["runs"]] == [
        "DDP",
        "Bytelane",
        "compute alone",
        "communication alone",
    ]
    assert all(one["iteration_ms"] > 0 for one in found["runs"])


@pytest.mark.parametrize("where", [IN_LAB, ("--here",)], ids=["lab", "torchrun"])
def test_the_scripts_own_failure_is_kept(run: Run, where: tuple[str, ...]) -> None:
    text = 'import sys\nprint("reading")\nprint("no data", file=sys.stderr)\nsys.exit(7)\n'
    code, out, err = run(text, *where)
    assert (code, out) == (7, "reading\n")
    assert err.endswith("no data\n")
    assert "bytelane: error" not in err


def test_a_script_without_ddp_is_a_sentence(run: Run) -> None:
    # Without DDP nothing else lets the ranks end together, and torch's store ends with rank 0.
    alone = TRAINING.replace("DDP(net)", "net") + "dist.barrier()\n"
    code, _, err = run(alone, *IN_LAB, "--", 3)
    assert code == 2
    assert "train.py never wrapped a model in DistributedDataParallel" in err


def test_a_script_that_hangs_is_a_sentence(run: Run) -> None:
    text = "import time\ntime.sleep(1000)\n"
    code, _, err = run(text, *IN_LAB, "--timeout", "3s")
    assert code == 2
    assert "train.py made no step for 3 s (DDP, 1 of 3, after 0 steps): it hangs, or" in err


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("import os; os._exit(0)", 2, "train.py exited without a report (by os._exit?)"),
        ("import os; os.kill(os.getpid(), 9)", 137, "exit code 137"),
    ],
)
def test_a_script_that_ends_without_a_word_is_told(
    run: Run, text: str, code: int, words: str
) -> None:
    ended, _, err = run(text, *IN_LAB)
    assert ended == code
    assert words in err


def test_a_script_that_ends_too_early_is_a_sentence(run: Run) -> None:
    code, _, err = run(TRAINING, "--here", "3")
    assert code == 2
    assert "train.py ended after 3 steps of its optimizer (DDP, 1 of 3), but at least 12" in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--here", "--rate", "1Gbit"), "--rate and --mode are a lab's"),
        (("--torchrun", "--nnodes 2"), "--torchrun has no effect without --here"),
        (("--here", "--torchrun", "'"), "cannot be read: No closing quotation"),
        (("--here", "--workers", "0"), "0 workers are too few"),
        (("--policy", "nonsense"), "nonsense"),
        (("--partition", "1MiB"), "--partition has no effect without a --policy"),
        (("--policy", "auto", "--credit", "1MiB"), "--credit has no effect without a --policy"),
        (("--iterations", "5"), "5 iterations are too few"),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused_at_once(
    run: Run, arguments: tuple[str, ...], complaint: str
) -> None:
    code, _, err = run("", *arguments)
    assert code == 2
    assert complaint in err


def test_a_script_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.py: there is no such file"):
        run_trial(Trial(str(tmp_path / "none.py")), Here(2))


def test_several_machines_take_part_with_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (tmp_path / "train.py").write_text(TRAINING)
    trial = Trial(str(tmp_path / "train.py"), iterations=12)
    folders = [RunFolder(tmp_path / f"machine-{number}") for number in range(2)]
    meeting = f"--nnodes 2 --master-addr 127.0.0.1 --master-port {_free_port()}"
    runs = []
    for number, folder in enumerate(folders):
        folder.give(Errand(trial, DDP))
        runs.append(Here(1, f"{meeting} --node-rank {number}").start(folder.path))
    try:
        for one in runs:
            one._process.wait(60)  # type: ignore[attr-defined]
    finally:
        for one in runs:
            one.stop()
    assert [[report.rank for report in folder.reports()] for folder in folders] == [[0], [1]]
    assert [folder.weights.exists() for folder in folders] == [True, False]
    assert len({report.digest for folder in folders for report in folder.reports()}) == 1


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
