"""torch.compile, of a whole model or of its blocks."""

import torch
from torch import nn

from cases.arms import CLASSES, FEATURES, Arm
from cases.compare import Values
from cases.parts import HIDDEN, STEPS, chain, loss_of, prepared, sgd, train, weights
from cases.registry import case


def compiled(module: nn.Module, backend: str = "aot_eager") -> nn.Module:
    return torch.compile(module, backend=backend)  # type: ignore[return-value]


@case(
    "torch.compile of the whole model",
    "barrier",
    why="One graph has no place to wait in between: it waits for all parameters at its head.",
    ways=("torch.compile", "in place"),
    says="compiled",
    probed=False,
)
def whole(arm: Arm, way: str) -> Values:
    model = chain()
    if way == "in place":
        model.compile(backend="aot_eager")
    optimizer = sgd(model.parameters())
    net = arm.prepare(model if way == "in place" else compiled(model), optimizer)
    train(net, optimizer, arm)
    return weights(model)


@case(
    "torch.compile of the whole model after prepare",
    "exact",
    why="Our hooks break the graph at every module; compile before `prepare` to keep it whole.",
    probed=False,
)
def whole_afterwards(arm: Arm) -> Values:
    model = chain()
    optimizer = sgd(model.parameters())
    train(compiled(arm.prepare(model, optimizer)), optimizer, arm)
    return weights(model)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()) for _ in range(2)
        )
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden)


@case(
    "torch.compile block by block",
    "exact",
    why="Between blocks there are places to wait: each waits for its own parameters.",
    ways=("before prepare", "after prepare", "in place"),
)
def by_block(arm: Arm, way: str) -> Values:
    model = Blocks()

    def compile_blocks() -> None:
        for k, block in enumerate(model.blocks):
            if way == "in place":
                block.compile(backend="aot_eager")
            else:
                model.blocks[k] = compiled(block)

    if way != "after prepare":
        compile_blocks()
    optimizer = sgd(model.parameters())
    net = arm.prepare(model, optimizer)
    if way == "after prepare":
        compile_blocks()
    train(net, optimizer, arm)
    return weights(model)


@case(
    "torch.compile with accumulation and no_sync",
    "barrier",
    why="As torch.compile of the whole model.",
    says="compiled",
    probed=False,
)
def accumulated(arm: Arm) -> Values:
    model = chain()
    optimizer = sgd(model.parameters())
    whole = compiled(model)
    net = arm.prepare(whole, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        with arm.no_sync(whole):
            loss_of(net, arm, step + 100).backward()
        loss_of(net, arm, step).backward()
        optimizer.step()
    return weights(model)


@case(
    "torch.compile with the default backend",
    "barrier",
    why="As above; fused kernels round in their own way, under DDP and here.",
    says="compiled",
    worlds=(2,),
    probed=False,
)
def inductor(arm: Arm) -> Values:
    model = chain()
    optimizer = sgd(model.parameters())
    train(arm.prepare(compiled(model, "inductor"), optimizer), optimizer, arm)
    return weights(model)


@case(
    "torch.compile of the optimizer's step",
    "barrier",
    why="Compiled code is not stepped in parts.",
    probed=False,
)
def compiled_step(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    step_once = torch.compile(optimizer.step, backend="aot_eager")
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, arm, step).backward()
        step_once()
    return weights(model)
