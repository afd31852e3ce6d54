"""The cable is pulled while training: put back in time nothing is lost, else an error says who."""

import os
import sys
from pathlib import Path

import pytest

from bytelane.lab import Lab
from bytelane.lab.tools import find_tool
from faults import expected_weights
from labs import Heard, need

pytestmark = pytest.mark.timeout(120)

STEPS = 8
TRAIN = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import torch
import torch.distributed as dist
import bytelane
from bytelane.errors import TrainingError
from faults import PARTS, checksums
from training import loss_of, make

cut, timeout_s, steps = sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
net, opt = make()
bytelane.prepare(net, opt, timeout_s=timeout_s, **PARTS)
try:
    for step in range(steps):
        opt.zero_grad()
        loss = loss_of(net, dist.get_rank(), step)
        if step == 5 and dist.get_rank() == 1:
            time.sleep(2)  # both have heard of each other
            subprocess.Popen(["sh", "-c", cut])
            time.sleep(0.3)  # it is down when the gradients come
        loss.backward()
        opt.step()
    print(checksums(net), flush=True)
except TrainingError as error:
    print(type(error).__name__, error, *error.__notes__, flush=True)
"""


def train_with(cut: str, timeout_s: float) -> Heard:
    """Train on two hosts, on one of which this is done to the link."""
    need("namespace")
    if os.geteuid() != 0:
        pytest.skip("only root may cut a host's link from inside")
    heard = Heard()
    here = str(Path(__file__).parents[1] / "support")
    cut = cut.replace("LINK", f"{find_tool('ip')} link set lane0")
    command = [sys.executable, "-c", TRAIN, here, cut, str(timeout_s), str(STEPS)]
    with Lab(2, "100Mbit", mode="namespace") as lab:
        assert lab.run(command, output=heard, timeout_s=60.0) == 0
    return heard


def test_training_goes_on_where_it_was_when_a_cut_link_is_back() -> None:
    heard = train_with("LINK down; sleep 2; LINK up", timeout_s=40)
    for rank in range(2):
        assert heard.of(rank)[-1] == str(expected_weights(STEPS)[-1])


def test_a_link_that_stays_cut_is_told_with_who_is_behind_it() -> None:
    heard = train_with("LINK down", timeout_s=7)
    for rank in range(2):
        (error,) = (line for line in heard.of(rank) if line.startswith("TransferTimeout"))
        awaited = f"; rank {1 - rank} is awaited; it has not been heard of for"
        assert f"did not arrive within 7 s{awaited}" in error
        assert "The weights are those after step" in error
        assert not heard.of(rank, "err")
