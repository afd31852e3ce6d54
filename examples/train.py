"""Train a small classifier in data parallel, with two lines of Bytelane.

    torchrun --standalone --nproc-per-node 2 examples/train.py

Without torchrun it trains on one worker, and Bytelane says that it has nothing to do.
"""

import os

import torch
import torch.distributed as dist
from torch import nn

import bytelane

STEPS = 60

if "RANK" in os.environ:  # started by torchrun
    dist.init_process_group("gloo")
rank = dist.get_rank() if dist.is_initialized() else 0

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, 512),
    nn.ReLU(),
    nn.Linear(512, 512),
    nn.ReLU(),
    nn.Linear(512, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

# The same model and optimizer come back: no wrapper, no "module." in the names.
bytelane.prepare(model, optimizer)

# Ten fixed points in space; each input is one of them with noise, its class is that point's number.
centres = torch.randn(10, 64)
noise = torch.Generator().manual_seed(rank)  # every worker sees other data

for step in range(STEPS):
    targets = torch.randint(0, 10, (32,), generator=noise)
    inputs = centres[targets] + 2 * torch.randn(32, 64, generator=noise)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()  # returns at once; in the next forward pass each module waits for its own
    schedule.step()
    if rank == 0 and step % 10 == 0:
        print(f"step {step:3d}   loss {loss.item():.4f}")

if rank == 0:
    # state_dict() first settles all updates. The other ranks have left by now, or wait.
    norm = sum(value.square().sum() for value in model.state_dict().values()).sqrt()
    print(f"trained; the weights have norm {norm:.3f}")
if dist.is_initialized():
    dist.destroy_process_group()
