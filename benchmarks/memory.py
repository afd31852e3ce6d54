"""Peak memory of a rank under DDP and under ours, on two ranks of this machine.

python benchmarks/memory.py

Everybody gets processes of their own. What counts is the most that a rank ever had in memory, and
how much of that is more than before training.
"""

import multiprocessing as mp
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bytelane

WORKERS = 2
STEPS = 12
MEBIBYTE = 2**20
CONTENDERS = ("DDP, gradient_as_bucket_view=True", "DDP", "ours, auto", "ours, bytescheduler 1 MiB")


def make_model() -> nn.Module:
    """60 million parameters, 230 MiB; activations are next to nothing."""
    wide = [layer for _ in range(6) for layer in (nn.Linear(3072, 3072), nn.ReLU())]
    return nn.Sequential(*wide, nn.Linear(3072, 1024))


def status_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


def train(rank: int, contender: str, store: str, answer: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=WORKERS)
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    before = status_mib("VmRSS")
    called = model
    if contender.startswith("DDP"):
        called = DistributedDataParallel(model, gradient_as_bucket_view="view" in contender)
    elif "auto" in contender:
        bytelane.prepare(model, optimizer)
    else:
        bytelane.prepare(model, optimizer, policy="bytescheduler", partition="1MiB", credit="2MiB")
    for _ in range(STEPS):
        optimizer.zero_grad()
        called(torch.randn(4, 3072)).square().mean().backward()
        optimizer.step()
    answer.send((before, status_mib("VmHWM")))
    dist.destroy_process_group()


def measure(contender: str) -> tuple[float, float]:
    """Return the memory before training and the peak, in MiB, of the rank that had most."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = context.Pipe(duplex=False)
        ranks = [
            context.Process(target=train, args=(rank, contender, f"{folder}/store", theirs))
            for rank in range(WORKERS)
        ]
        for process in ranks:
            process.start()
        found = [ours.recv() for _ in ranks]
        for process in ranks:
            process.join()
    return max(found, key=lambda pair: pair[1])


def main() -> None:
    size = sum(p.numel() * p.element_size() for p in make_model().parameters()) / MEBIBYTE
    print(f"{size:.0f} MiB of weights, as much momentum; {WORKERS} ranks, {STEPS} steps")
    rows = {contender: measure(contender) for contender in CONTENDERS}
    least = rows[CONTENDERS[0]][1]
    for contender, (before, peak) in rows.items():
        print(
            f"{contender:<36} peak {peak:7.0f} MiB, {peak - before:6.0f} MiB more than before, "
            f"{peak / least:.3f} of the first"
        )


if __name__ == "__main__":
    main()
