"""The examples in the repository run as their first lines say."""

import re
import sys
from pathlib import Path

import pytest
import torch

from launched import run_to_the_end

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SMALL = {
    "cnn": ("--width", "4", "--batch", "4"),
    "gpt": ("--width", "16", "--depth", "2", "--batch", "2"),
}


def run(example: str, *options: str, launcher: tuple[str, ...] = TORCHRUN) -> str:
    return run_to_the_end(
        [sys.executable, *launcher, str(EXAMPLES / f"{example}.py"), *options],
        {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )


def losses(output: str) -> list[float]:
    return [float(text) for text in re.findall(r"loss (\S+)", output)]


def test_two_workers_learn_and_the_first_may_look_after_the_other_has_left() -> None:
    output = run("train")
    assert losses(output)[-1] < 0.5 < losses(output)[0]
    assert "trained; the weights have norm" in output


def test_one_worker_trains_without_torchrun() -> None:
    output = run("train", launcher=())
    assert "nothing to synchronise" in output
    assert losses(output)[-1] < 0.5


def test_the_cnn_trains_as_under_ddp_and_tells_its_rate() -> None:
    ours, theirs = (run("cnn", "--steps", "3", *SMALL["cnn"], *ddp) for ddp in ((), ("--ddp",)))
    assert len(losses(ours)) == 2
    assert losses(ours) == losses(theirs)
    assert re.search(r"\d images/s$", ours, re.MULTILINE)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the GPT after three steps."""
    return train_gpt(tmp_path_factory.mktemp("gpt") / "ours.pt", steps=3)


def train_gpt(file: Path, steps: int, *options: str) -> Path:
    run("gpt", "--steps", str(steps), "--checkpoint", str(file), *SMALL["gpt"], *options)
    return file


def test_the_gpt_trains_as_under_ddp(checkpoint: Path, tmp_path: Path) -> None:
    files = checkpoint, train_gpt(tmp_path / "theirs.pt", 3, "--ddp")
    ours, theirs = (torch.load(file)["model"] for file in files)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_gpt_goes_on_from_its_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.pt"
    copy.write_bytes(checkpoint.read_bytes())
    saved = torch.load(train_gpt(copy, steps=5))
    assert saved["step"] == saved["schedule"]["last_epoch"] == 5
    assert {state["step"].item() for state in saved["optimizer"]["state"].values()} == {5.0}


@pytest.mark.parametrize("name", ["train", *SMALL])
def test_an_example_is_read_in_one_sitting(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 120
    assert text.count("bytelane.prepare(") == 1
