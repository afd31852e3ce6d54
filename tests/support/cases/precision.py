"""Dtypes other than float32, alone and mixed."""

import torch
from torch import nn

from cases.arms import CLASSES, FEATURES, Arm, Net
from cases.compare import Values
from cases.parts import HIDDEN, STEPS, chain, loss_of, prepared, train, weights
from cases.registry import case


def in_dtype(net: Net, arm: Arm, step: int, dtype: torch.dtype) -> torch.Tensor:
    inputs, targets = arm.batch(step)
    output = net(inputs.to(dtype))
    arm.pause(step)
    return nn.functional.cross_entropy(output.float(), targets)


@case(
    "float64",
    "exact",
    why="As float32, with twice the bytes.",
    rounding="float64",
)
def double(arm: Arm) -> Values:
    return trained_in(arm, torch.float64)


@case("float16", "exact", why="Sums are in float16, as DDP's.", rounding="float16")
def half(arm: Arm) -> Values:
    return trained_in(arm, torch.float16)


@case("bfloat16", "exact", why="Sums are in bfloat16, as DDP's.", rounding="bfloat16")
def brain(arm: Arm) -> Values:
    return trained_in(arm, torch.bfloat16)


def trained_in(arm: Arm, dtype: torch.dtype) -> Values:
    model, net, optimizer = prepared(arm, chain().to(dtype))
    train(net, optimizer, arm, loss_of=lambda *a: in_dtype(*a, dtype))
    return weights(model)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN).bfloat16()
        self.norm = nn.LayerNorm(HIDDEN)
        self.middle = nn.Linear(HIDDEN, HIDDEN).double()
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x.bfloat16()).float())
        return self.last(torch.tanh(self.middle(hidden.double())).float())


@case(
    "several dtypes in one model",
    "exact",
    why="Each tensor is summed in its own dtype; tensors in one message share a dtype.",
    rounding="bfloat16",
)
def mixed(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm, Mixed())
    train(net, optimizer, arm)
    return weights(model)


@case(
    "autocast to bfloat16",
    "exact",
    why="Weights and gradients stay float32.",
    rounding="bfloat16",
)
def autocast(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)

    def loss(net: Net, arm: Arm, step: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(net, arm, step)

    train(net, optimizer, arm, loss_of=loss)
    return weights(model)


@case(
    "GradScaler",
    "barrier",
    why="Before a step it looks for infinities in all summed gradients, and skips the step or not.",
)
def scaler(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2)
    scales = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(net, arm, step)
        if step in (2, 5) and arm.rank == arm.world - 1:
            loss = loss * 1e38  # infinite gradients on one rank
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales[2] < scales[1] or arm.rank < arm.world - 1, "no step was skipped"
    return weights(model) | {"scales": torch.tensor(scales)}


@case(
    "GradScaler with clipping and accumulation",
    "barrier",
    why="`unscale_` reads and writes all summed gradients.",
)
def scaled_and_clipped(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    for step in range(STEPS):
        optimizer.zero_grad()
        with arm.no_sync(model):
            scaler.scale(loss_of(net, arm, step + 100)).backward()
        scaler.scale(loss_of(net, arm, step)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()
    return weights(model)
