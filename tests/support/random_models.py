"""Training runs drawn at random: a model, an optimizer, knobs, and habits of a loop.

One seed is one run, the same on every machine. ``python tests/soak/training.py --seed 7`` runs it
again and shows what it is.
"""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases.arms import CLASSES, FEATURES, Arm, Ddp, Ours
from cases.compare import Values, differences, digest
from cases.parts import state_of, weights
from cases.trial import drop_models

WIDTH = 16

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "momentum, foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.005),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.02),
}
KNOBS: tuple[dict[str, Any], ...] = (
    {"policy": "fifo"},
    {"policy": "fusion"},
    {"policy": "mg-wfbp"},
    {"policy": "p3", "partition": 200},
    {"policy": "bytescheduler"},
    {"policy": "bytescheduler", "partition": "256B", "credit": 1},
    {"policy": "bytescheduler", "partition": "512B", "credit": "1KiB"},
    {"policy": "bytescheduler", "partition": 1001, "credit": "1MiB"},
)
LAYERS = ("linear", "norm", "batch norm", "convolution", "embedding", "nested", "scale")
USES = ("new", "new", "new", "new", "again", "functionally", "join", "checkpoint", "now and then")
HABITS = (
    "accumulates",
    "accumulates without sync",
    "clips",
    "reads gradients",
    "evaluates",
    "zeroes in place",
    "zeroes after",
    "never zeroes",
    "schedules",
    "skips a step",
    "saves",
    "freezes one",
)


@dataclass(frozen=True)
class Node:
    """One step of the forward pass: how it comes to its layer, which kind, what it is fed."""

    use: str
    layer: str
    inputs: tuple[int, ...]
    which: int


@dataclass(frozen=True)
class Drawn:
    """All that a seed decides."""

    seed: int
    nodes: tuple[Node, ...]
    never_used: int
    optimizer: str
    knobs: dict[str, Any]
    habits: tuple[str, ...]
    dtype: torch.dtype
    steps: int

    @property
    def has_unused(self) -> bool:
        """Tell whether some parameter may get no gradient in some iteration."""
        leads_to_last = {len(self.nodes)}
        for place, node in reversed([*enumerate(self.nodes, 1)]):
            if place in leads_to_last:
                leads_to_last.update(node.inputs)
        some_lead_nowhere = len(leads_to_last) <= len(self.nodes)
        now_and_then = any(node.use == "now and then" for node in self.nodes)
        return self.never_used > 0 or some_lead_nowhere or now_and_then


def draw(seed: int) -> Drawn:
    """Decide everything from the seed."""
    chance = Random(seed)
    nodes = tuple(_draw_node(chance, place) for place in range(chance.randint(1, 7)))
    return Drawn(
        seed,
        nodes,
        chance.choice((0, 0, 0, 1, 2)),
        chance.choice(list(OPTIMIZERS)),
        chance.choice(KNOBS),
        _draw_habits(chance),
        chance.choice((torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16)),
        chance.randint(5, 9),
    )


def _draw_node(chance: Random, place: int) -> Node:
    use = chance.choice(USES) if place else "new"
    feeds = tuple(chance.randint(0, place) for _ in range(2 if use == "join" else 1))
    # Mostly a chain: what nobody is fed with is unused.
    inputs = (place, *feeds[1:]) if chance.random() < 0.8 else feeds
    return Node(use, chance.choice(LAYERS), inputs, chance.randrange(100))


def _draw_habits(chance: Random) -> tuple[str, ...]:
    habits = chance.sample(HABITS, chance.choice((0, 1, 1, 2, 3)))
    one_of_each = ("zeroes in place", "zeroes after", "never zeroes")
    zeroing = [habit for habit in habits if habit in one_of_each][1:]
    return tuple(habit for habit in habits if habit not in zeroing)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table(x[:, :3].detach().abs().mul(4).long().clamp(max=9)).mean(1)
        return x + found


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.over = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.over(x.unsqueeze(1)).squeeze(1)
        return found


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "convolution": Convolution,
    "embedding": Tokens,
    "nested": lambda: nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, WIDTH)),
    "scale": Scale,
}


class RandomModel(nn.Module):
    """Follows the nodes; ``moment`` decides who is used now and then."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        self.last = nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(
            MAKERS["linear" if node.use == "functionally" else node.layer]()
            for node in drawn.nodes
            if node.use != "again"
        )
        self.left_out = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(drawn.never_used))
        self.nodes = drawn.nodes
        self.moment = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, made = [torch.tanh(self.first(x))], iter(self.layers)
        used: list[nn.Module] = []
        for node in self.nodes:
            if node.use == "again":
                layer = used[node.which % len(used)]
            else:
                layer = next(made)
                used.append(layer)
            fed = sum((values[k] for k in node.inputs[1:]), values[node.inputs[0]])
            values.append(torch.tanh(self._apply_layer(node, layer, fed)) + 0.5 * fed)
        found: torch.Tensor = self.last(values[-1])
        return found

    def _apply_layer(self, node: Node, layer: Any, fed: torch.Tensor) -> torch.Tensor:
        if node.use == "now and then" and (self.moment + node.which) % 3 == 0:
            return fed
        if node.use == "functionally":
            return nn.functional.linear(fed, layer.weight.t(), layer.bias)
        if node.use == "checkpoint" and node.layer != "batch norm":  # it would count twice
            return checkpoint(layer, fed, use_reentrant=False)  # type: ignore[no-any-return]
        return layer(fed)  # type: ignore[no-any-return]


def judge(rank: int, seed: int) -> list[str]:
    """Train what a seed draws by DDP and by us; say what differs."""
    drawn, world = draw(seed), dist.get_world_size()
    with redirect_stdout(io.StringIO()):
        ours = train(drawn, Ours(rank, world, knobs=drawn.knobs))
    if world == 2:
        told = differences(ours, train(drawn, Ddp(rank, world)))
    else:  # the sums of another plan round differently; those of the same one do not
        with redirect_stdout(io.StringIO()):
            told = differences(
                ours, train(drawn, Ours(rank, world, knobs=drawn.knobs, barrier=True))
            )
    drop_models()
    return told + unequal_ranks(ours)


def unequal_ranks(ours: Values) -> list[str]:
    """Say so if ranks do not hold the same weights."""
    mine = digest(ours)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return [] if len(set(everyone)) == 1 else ["ranks do not agree with each other"]


def how_to_repeat(seed: int, world: int) -> str:
    """Say what a seed has drawn, and how to run only it."""
    return f"{draw(seed)}\nagain: python tests/soak/training.py --seed {seed} --ranks {world}"


def train(drawn: Drawn, arm: Arm) -> Values:
    """Run what was drawn by one arm."""
    torch.manual_seed(drawn.seed)
    model: Any = RandomModel(drawn).to(drawn.dtype)
    if "freezes one" in drawn.habits:
        model.first.requires_grad_(False)
    optimizer = OPTIMIZERS[drawn.optimizer](model.parameters())
    net = arm.prepare(model, optimizer, find_unused_parameters=drawn.has_unused)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    seen: Values = {}
    for step in range(drawn.steps):
        _iterate(drawn, arm, model, net, optimizer, step, seen)
        if "schedules" in drawn.habits:
            schedule.step()
    return weights(model) | state_of(optimizer) | seen


def _iterate(
    drawn: Drawn, arm: Arm, model: Any, net: Any, optimizer: Any, step: int, seen: Values
) -> None:
    habits = drawn.habits
    if "zeroes after" not in habits and "never zeroes" not in habits:
        optimizer.zero_grad(set_to_none="zeroes in place" not in habits)
    if "accumulates without sync" in habits:
        with arm.no_sync(model):
            _backward(drawn, arm, model, net, step + 100)
    for part in range(2 if "accumulates" in habits else 1):
        _backward(drawn, arm, model, net, step + 200 * part)
    if "reads gradients" in habits and step % 3 == 1 and model.last.bias.grad is not None:
        seen[f"gradient {step}"] = model.last.bias.grad.clone()
    if "clips" in habits:
        seen[f"norm {step}"] = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    if "skips a step" not in habits or step % 4 != 2:
        optimizer.step()
    if "zeroes after" in habits:
        optimizer.zero_grad()
    if "evaluates" in habits and step % 3 == 2:
        model.eval()
        with torch.no_grad():
            ones = torch.ones(2, FEATURES, dtype=drawn.dtype)
            seen[f"on this rank: output {step}"] = model(ones)
        model.train()
    if "saves" in habits and step % 4 == 3:
        seen[f"saved {step}"] = model.state_dict()["last.weight"].clone()


def _backward(drawn: Drawn, arm: Arm, model: Any, net: Any, step: int) -> None:
    inputs, targets = arm.batch(step)
    model.moment = step + arm.rank
    loss = nn.functional.cross_entropy(net(inputs.to(drawn.dtype)).float(), targets)
    loss.backward()
