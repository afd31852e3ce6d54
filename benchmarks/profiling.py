"""Does a profiled job take as long as the training that it was made from?

A plain loop without any hook and profiling take turns, a few iterations each; the median of the
simulator's compute-only times is divided by the median of the plain iterations. On a machine that
others use too, both are CPU times of the one thread that trains; --wall takes the time of day.

python benchmarks/profiling.py [--wall] [--rounds 15]
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bytelane
from bytelane.measure.loop import profile_model

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from resnet50 import ResNet50

WANTED_PERCENT = 3
# Otherwise the C library gives memory back and fetches it again, at thousands of page faults an
# iteration or at none, as the heap happens to lie: the same plain loop then differs by up to 1.8 x.
STEADY = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "17179869184"}


class Watch(NamedTuple):
    """A clock for profiling, by a function that tells seconds."""

    moment: Callable[[], float]

    def seconds(self, moments: Sequence[float]) -> list[float]:
        return list(moments)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.ln1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """Four blocks; the embedding is also the output layer."""

    def __init__(self, words: int = 4000, width: int = 192, length: int = 64) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words) + self.position(torch.arange(words.shape[1]))
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)


def mlp() -> nn.Module:
    layers = [module for _ in range(6) for module in (nn.Linear(768, 768), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(768, 10))


def cnn() -> nn.Module:
    widths = (3, 32, 64, 128)
    parts = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
        for a, b in pairwise(widths)
    ]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(128 * 16, 10))


def classes(count: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, *shape), torch.randint(0, 10, (count,))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "MLP, 7 layers, batch 64": (mlp, lambda: classes(64, 768)),
    "CNN, 3 convolutions, batch 32": (cnn, lambda: classes(32, 3, 32, 32)),
    "ResNet-50, 64 x 64, batch 4": (ResNet50, lambda: classes(4, 3, 64, 64)),
    "GPT, 4 blocks, tied, 4 x 64 words": (
        GPT,
        lambda: (torch.randint(0, 4000, (4, 64)), torch.randint(0, 4000, (4, 64))),
    ),
}


class Round(NamedTuple):
    """A few plain iterations beside a profile of as many."""

    plain_s: float
    simulated_s: float
    hooks: float
    """What observing adds to an iteration, as a fraction."""
    backward: float
    """As a multiple of forward."""


def plain(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, count: int, watch: Watch
) -> list[float]:
    times = []
    inputs, targets = batch
    for _ in range(count):
        began = watch.moment()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(watch.moment() - began)
    return times


def rounds_of(name: str, count: int, watch: Watch) -> list[Round]:
    make, make_batch = CASES[name]
    torch.manual_seed(0)
    model, batch = make(), make_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return [one_round(model, optimizer, batch, watch) for _ in range(count)]


def one_round(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, watch: Watch
) -> Round:
    times = plain(model, optimizer, batch, 4, watch)[1:]
    found = profile_model(
        model, batch, cross_entropy, optimizer, iterations=4, warmup=1, clock=watch
    )
    times += plain(model, optimizer, batch, 4, watch)[1:]
    return Round(
        median(times),
        bytelane.simulate(found.job, workers=1).iteration_s,
        found.marks * found.mark_s / found.iteration.median_s,
        found.stages["backward"].median_s / found.stages["forward"].median_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare profiled jobs with plain training.")
    parser.add_argument("--wall", action="store_true", help="the time of day, not of the CPU")
    parser.add_argument("--rounds", type=int, default=15)
    settings = parser.parse_args()
    if not STEADY.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | STEADY)
    torch.set_num_threads(1)
    watch = Watch(time.perf_counter if settings.wall else time.thread_time)
    print(
        f"{'model':<34}{'plain':>10}{'simulated / plain':>19}{'one round (quartiles)':>24}", end=""
    )
    print(f"{'hooks':>8}{'backward / forward':>20}")
    for name in CASES:
        rounds = rounds_of(name, settings.rounds, watch)
        plain_s = median(one.plain_s for one in rounds)
        ratio = median(one.simulated_s for one in rounds) / plain_s
        low, _, high = quantiles([one.simulated_s / one.plain_s for one in rounds], n=4)
        print(
            f"{name:<34}{plain_s * 1e3:7.1f} ms{ratio:19.3f}{f'{low:.3f} to {high:.3f}':>24}"
            f"{median(one.hooks for one in rounds):8.2%}"
            f"{median(one.backward for one in rounds):20.2f}",
            flush=True,
        )
    print(
        f"wanted: within {WANTED_PERCENT} %; {settings.rounds} rounds, one thread, "
        f"{'time of day' if settings.wall else 'CPU time'}"
    )
    print(f"{platform.platform()}, Python {platform.python_version()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
