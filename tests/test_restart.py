"""torchrun starts all ranks again after one was lost, and training resumes from a checkpoint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist
import bytelane
from training import loss_of, make, weights

folder, steps, lost_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
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
    if (rank, attempt, step) == (1, 0, lost_at):
        os.kill(os.getpid(), signal.SIGKILL)
    opt.step()
    if rank == 0:
        torch.save((step + 1, net.state_dict(), opt.state_dict()), folder / "new.pt")
        (folder / "new.pt").rename(saved)
torch.save((attempt, begin, weights(net)), folder / f"rank{rank}.pt")
dist.destroy_process_group()
"""


def trained(folder: Path, lost_at: int) -> list[tuple[int, int, list[torch.Tensor]]]:
    """Train ten steps under torchrun; return the attempt, its first step and its weights."""
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    tests = str(Path(__file__).parent)
    subprocess.run(
        [sys.executable, *launcher, "--max-restarts", "1", script, folder, "10", str(lost_at)],
        env={**os.environ, "PYTHONPATH": tests, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.timeout(240)
def test_a_lost_rank_is_started_again_and_training_resumes(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", lost_at=99)
    resumed = trained(tmp_path / "resumed", lost_at=6)
    assert [(attempt, begin) for attempt, begin, _ in whole] == [(0, 0)] * 2
    # Rank 0 may have saved the step during which the other was lost only if it was complete.
    assert [(attempt, begin) for attempt, begin, _ in resumed] == [(1, 6)] * 2
    for (_, _, weights), (_, _, expected) in zip(resumed, whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
