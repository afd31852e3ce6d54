"""Does a profiled job take as long as the training that it was made from?

A plain loop without any hook is timed just before and just after profiling; the simulator's
compute-only time is divided by the median of both. On a machine that others use too, both are CPU
times of the one thread that trains; --wall takes the time of day instead.

python benchmarks/profiling.py [--wall] [--repeats 3]
"""

import argparse
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


class Outcome(NamedTuple):
    measured_s: float
    spread: float
    """Of the plain iterations, between the quartiles, as a fraction."""
    ratio: float
    overhead: float
    ratio_of_passes: float


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


def measure(name: str, iterations: int, watch: Watch) -> Outcome:
    make, make_batch = CASES[name]
    torch.manual_seed(0)
    model, batch = make(), make_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    plain(model, optimizer, batch, 3, watch)
    times = plain(model, optimizer, batch, iterations, watch)
    found = profile_model(
        model, batch, cross_entropy, optimizer, iterations=iterations, warmup=3, clock=watch
    )
    times += plain(model, optimizer, batch, iterations, watch)
    low, middle, high = quantiles(times, n=4)
    simulated = bytelane.simulate(found.job, workers=1)
    return Outcome(
        middle,
        (high - low) / middle,
        simulated.iteration_s / middle,
        found.marks * found.mark_s / found.iteration.median_s,
        found.stages["backward"].median_s / found.stages["forward"].median_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare profiled jobs with plain training.")
    parser.add_argument("--wall", action="store_true", help="the time of day, not of the CPU")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    watch = Watch(time.perf_counter if settings.wall else time.thread_time)
    found: dict[str, list[Outcome]] = {name: [] for name in CASES}
    for _ in range(settings.repeats):  # in turns, so that a busy minute hits all of them
        for name, outcomes in found.items():
            outcomes.append(measure(name, settings.iterations, watch))
    title = f"{'model':<36}{'iteration':>11}{'spread':>8}{'simulated / measured':>30}"
    print(f"{title}{'hooks':>8}{'forward : backward':>20}")
    for name, outcomes in found.items():
        ratios = sorted(one.ratio for one in outcomes)
        print(
            f"{name:<36}{median(o.measured_s for o in outcomes) * 1e3:8.1f} ms"
            f"{median(o.spread for o in outcomes):8.1%}"
            f"{median(ratios):12.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            f"{median(o.overhead for o in outcomes):8.2%}"
            f"{median(o.ratio_of_passes for o in outcomes):14.2f} : 1"
        )
    print(
        f"wanted: within {WANTED_PERCENT} %; {settings.repeats} repeats, one thread, "
        f"{'time of day' if settings.wall else 'CPU time'}"
    )
    print(f"{platform.platform()}, Python {platform.python_version()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
