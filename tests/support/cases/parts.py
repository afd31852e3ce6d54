"""Small models and loops that cases are made of."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from cases.arms import CLASSES, FEATURES, Arm, Net
from cases.compare import Values

STEPS = 8
HIDDEN = 24


def chain() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.LayerNorm(HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, CLASSES),
    )


def matrices() -> nn.Sequential:
    """Every parameter has two dimensions."""
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN, bias=False),
        nn.Tanh(),
        nn.Linear(HIDDEN, CLASSES, bias=False),
    )


def sgd(parameters: Iterable[Any], lr: float = 0.1) -> torch.optim.Optimizer:
    """Momentum, so that a gradient of zero and none at all are two things."""
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def prepared(arm: Arm, model: nn.Module | None = None, **ddp: Any) -> tuple[Any, Net, Any]:
    """Return a model, what to call for it, and its optimizer."""
    model = chain() if model is None else model
    optimizer = sgd(model.parameters())
    return model, arm.prepare(model, optimizer, **ddp), optimizer


def loss_of(net: Net, arm: Arm, step: int) -> torch.Tensor:
    inputs, targets = arm.batch(step)
    output = net(inputs)
    arm.pause(step)
    return nn.functional.cross_entropy(output, targets)


def train(
    net: Net,
    optimizer: torch.optim.Optimizer,
    arm: Arm,
    *,
    steps: Iterable[int] = range(STEPS),
    loss_of: Callable[[Net, Arm, int], torch.Tensor] = loss_of,
    before_step: Callable[[], object] = lambda: None,
    after_step: Callable[[], object] = lambda: None,
) -> None:
    """The usual loop."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(net, arm, step).backward()
        before_step()
        optimizer.step()
        after_step()


def weights(model: nn.Module, label: str = "") -> Values:
    """Return parameters, equal on all ranks, and buffers, which are each rank's own."""
    trained = {f"{label}{name}": p.detach().clone() for name, p in model.named_parameters()}
    return trained | {
        f"on this rank: {label}{name}": b.detach().clone() for name, b in model.named_buffers()
    }


def gradients(model: nn.Module, label: str = "gradient of ") -> Values:
    return {
        f"{label}{name}": None if p.grad is None else p.grad.detach().clone()
        for name, p in model.named_parameters()
    }


def state_of(optimizer: torch.optim.Optimizer, label: str = "") -> Values:
    """Return momenta and the like."""
    return {
        f"{label}{key} of {number}": value.detach().clone()
        if isinstance(value, torch.Tensor)
        else value
        # By number: a parameter whose gradient is late gets its first momentum after the others.
        for number, state in sorted(optimizer.state_dict()["state"].items())
        for key, value in state.items()
    }
