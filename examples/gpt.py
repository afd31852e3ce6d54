"""Train a small GPT in data parallel, with two lines of Bytelane.

    torchrun --standalone --nproc-per-node 2 examples/gpt.py --checkpoint gpt.pt

It has what real training scripts have: an embedding that is also the output layer, two groups of
parameters, a learning rate that follows a cosine, clipped gradients, and a checkpoint, from which
it resumes when it is started again. Its text is generated arithmetic: nothing is downloaded. With
--ddp it trains under DistributedDataParallel: ``bytelane try examples/gpt.py --ddp``.
"""

import argparse
import math
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import bytelane

LETTERS, LENGTH = "0123456789+=;", 64


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, length, width = x.shape
        parts = self.attend(self.before(x)).view(size, length, 3, self.heads, -1).unbind(2)
        heads = (part.transpose(1, 2) for part in parts)
        seen = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)
        x = x + self.project(seen.reshape(size, length, width))
        return x + self.narrow(nn.functional.gelu(self.widen(self.between(x))))


class Gpt(nn.Module):
    def __init__(self, width: int, depth: int, heads: int = 4) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, len(LETTERS), bias=False)
        nn.init.normal_(self.letters.weight, std=0.02)
        self.output.weight = self.letters.weight  # tied

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.letters(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.output(self.norm(self.blocks(x)))


def make_batch(size: int, numbers: random.Random) -> torch.Tensor:
    """Write sums like 417+58=475; one after the other, and cut them to length."""
    rows = []
    for _ in range(size):
        text = ""
        while len(text) <= LENGTH:
            a, b = numbers.randrange(1000), numbers.randrange(1000)
            text += f"{a}+{b}={a + b};"
        rows.append([LETTERS.index(letter) for letter in text[: LENGTH + 1]])
    return torch.tensor(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60, help="steps to train (default 60)")
    parser.add_argument("--batch", type=int, default=8, help="rows per worker (default 8)")
    parser.add_argument("--width", type=int, default=192, help="embedding size (default 192)")
    parser.add_argument("--depth", type=int, default=4, help="number of blocks (default 4)")
    parser.add_argument("--checkpoint", help="resume from this file, and write it at the end")
    parser.add_argument("--ddp", action="store_true", help="train under DDP, without Bytelane")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = trained = Gpt(options.width, options.depth)
    decay = {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1}
    others = {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([decay, others], lr=2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.55 + 0.45 * math.cos(math.pi * min(1.0, step / options.steps))
    )
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    first = 0
    if options.checkpoint and os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint)
        first = saved["step"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    if options.ddp:
        trained = DistributedDataParallel(model)
    else:
        bytelane.prepare(model, optimizer)  # the only change besides the import

    for step in range(first, options.steps):
        tokens = make_batch(options.batch, random.Random(f"{rank}/{step}"))
        optimizer.zero_grad()
        loss = cross_entropy(trained(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if rank == 0 and (step % 10 == 0 or step == options.steps - 1):
            print(f"step {step:4d}   loss {loss.item():.4f}   lr {schedule.get_last_lr()[0]:.2e}")
    if rank == 0 and options.checkpoint:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({"step": options.steps, **state}, options.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
