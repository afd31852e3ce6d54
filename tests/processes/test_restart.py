"""A rank is lost under torchrun: the job ends, and when started again resumes from its checkpoint.

Not by ``--max-restarts``: on this torch the ranks of a second attempt meet the addresses of the
first in torchrun's store, and gloo cannot connect, with DistributedDataParallel as with us.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

NEVER = 99
SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist
import bytelane
from training import loss_of, make, weights

folder, steps, lost_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
net, opt = make("chain", "adamw")
bytelane.prepare(net, opt, policy="bytescheduler", partition="1KiB", credit="2KiB", timeout_s=30)
saved, begin = folder / "checkpoint.pt", 0
if saved.exists():
    begin, model, optimizer = torch.load(saved)
    net.load_state_dict(model)
    opt.load_state_dict(optimizer)
for step in range(begin, steps):
    opt.zero_grad()
    loss_of(net, rank, step).backward()
    if (rank, step) == (1, lost_at):
        os.kill(os.getpid(), signal.SIGKILL)
    opt.step()
    if rank == 0:
        torch.save((step + 1, net.state_dict(), opt.state_dict()), folder / "new.pt")
        (folder / "new.pt").rename(saved)
torch.save((begin, weights(net)), folder / f"rank{rank}.pt")
dist.destroy_process_group()
"""


def run(folder: Path, lost_at: int) -> int:
    """Train ten steps under torchrun, from the last checkpoint on; return its exit code."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    tests = str(Path(__file__).parents[1] / "support")
    path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *launcher, script, folder, "10", str(lost_at)],
        env={**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        timeout=60,
    ).returncode


def result(folder: Path) -> list[tuple[int, list[torch.Tensor]]]:
    """Return, of each rank, the step at which it began and its weights."""
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.timeout(200)
def test_a_job_that_has_lost_a_rank_ends_and_resumes(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    assert run(whole, lost_at=NEVER) == 0
    assert run(parts, lost_at=6) != 0
    assert not (parts / "rank0.pt").exists()
    assert run(parts, lost_at=NEVER) == 0
    for (begin, weights), (_, expected) in zip(result(parts), result(whole), strict=True):
        assert begin == 6
        assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
