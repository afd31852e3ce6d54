"""Optimizers of torch, groups of parameters, several optimizers, optimizers that couple them."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, StepLR

from cases.arms import Arm
from cases.compare import Values
from cases.parts import STEPS, chain, loss_of, matrices, prepared, sgd, state_of, train, weights
from cases.registry import case

WAYS = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def trained_with(
    arm: Arm, make: Callable[..., torch.optim.Optimizer], model: nn.Module | None = None
) -> Values:
    model = chain() if model is None else model
    optimizer = make(model.parameters())
    train(arm.prepare(model, optimizer), optimizer, arm)
    return weights(model) | state_of(optimizer)


@case(
    "SGD with momentum and Nesterov",
    "exact",
    why="Every parameter is updated by itself, so it can be updated when its gradient arrives.",
    ways=("plain", "foreach", "fused"),
)
def nesterov(arm: Arm, way: str) -> Values:
    def make(p: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **WAYS[way]
        )

    return trained_with(arm, make)


@case(
    "Adam",
    "exact",
    why="As SGD; its step counters count a late update as the step it belongs to.",
    ways=("plain", "foreach", "fused"),
)
def adam(arm: Arm, way: str) -> Values:
    return trained_with(arm, lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, **WAYS[way]))


@case("AdamW", "exact", why="As Adam.", ways=("plain", "foreach", "fused"))
def adamw(arm: Arm, way: str) -> Values:
    return trained_with(arm, lambda p: torch.optim.AdamW(p, lr=0.01, **WAYS[way]))


@case("Adagrad", "exact", why="As SGD.", ways=("plain", "foreach", "fused"))
def adagrad(arm: Arm, way: str) -> Values:
    return trained_with(arm, lambda p: torch.optim.Adagrad(p, lr=0.05, **WAYS[way]))


@case("RMSprop", "exact", why="As SGD.", ways=("plain", "foreach"))
def rmsprop(arm: Arm, way: str) -> Values:
    return trained_with(
        arm, lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, **WAYS[way])
    )


@case("NAdam", "exact", why="As Adam.", ways=("plain", "foreach"))
def nadam(arm: Arm, way: str) -> Values:
    return trained_with(arm, lambda p: torch.optim.NAdam(p, lr=0.01, **WAYS[way]))


@case(
    "Adafactor",
    "exact",
    why="It reads a whole parameter at once, but only one.",
    ways=("plain", "foreach"),
)
def adafactor(arm: Arm, way: str) -> Values:
    return trained_with(arm, lambda p: torch.optim.Adafactor(p, lr=0.05, **WAYS[way]))


@case(
    "Muon",
    "exact",
    why="It reads a whole matrix at once, but only one.",
    rounding="bfloat16",
)
def muon(arm: Arm) -> Values:
    return trained_with(arm, lambda p: torch.optim.Muon(p, lr=0.02), matrices())


@case(
    "Adadelta, Adamax, ASGD, RAdam, Rprop",
    "exact",
    why="As SGD and Adam.",
    ways=("Adadelta", "Adamax", "ASGD", "RAdam", "Rprop"),
)
def rarer(arm: Arm, way: str) -> Values:
    return trained_with(arm, lambda p: getattr(torch.optim, way)(p, lr=0.01))


@case(
    "several parameter groups with rates of their own",
    "exact",
    why="A late update uses its own group's values, as they were when `step()` was called.",
)
def groups(arm: Arm) -> Values:
    model = chain()
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 0.03},
            {"params": model[2].parameters(), "lr": 0.001, "weight_decay": 0.5},
            {"params": model[3].parameters(), "betas": (0.5, 0.9)},
            {"params": model[5].parameters()},
        ],
        lr=0.01,
    )
    train(arm.prepare(model, optimizer), optimizer, arm)
    return weights(model) | state_of(optimizer)


@case(
    "add_param_group in the middle of a run",
    "exact",
    why="A parameter that no optimizer holds yet has its gradient summed all the same.",
)
def added_group(arm: Arm) -> Values:
    model = chain()
    optimizer = sgd([*model[0].parameters(), *model[3].parameters()])
    net = arm.prepare(model, optimizer)
    for step in range(STEPS):
        if step in (2, 5):
            optimizer.add_param_group({"params": list(model[step].parameters())})
        model.zero_grad()
        loss_of(net, arm, step).backward()
        optimizer.step()
    return weights(model) | state_of(optimizer)


@case(
    "a learning rate that is a tensor",
    "exact",
    why="Its value at `step()` counts, also if it is changed before the update arrives.",
)
def rate_in_a_tensor(arm: Arm) -> Values:
    model, rate = chain(), torch.tensor(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, foreach=False)
    net = arm.prepare(model, optimizer)
    train(net, optimizer, arm, after_step=lambda: rate.mul_(0.7))
    return weights(model)


@case(
    "learning-rate schedulers",
    "exact",
    why="`scheduler.step()` follows `step()` at once and does not reach back to late updates.",
    ways=("built before prepare", "built after prepare"),
)
def schedulers(arm: Arm, way: str) -> Values:
    model = chain()
    optimizer = sgd(model.parameters())

    def build() -> list[Any]:
        return [StepLR(optimizer, 3, gamma=0.5), ExponentialLR(optimizer, gamma=0.8)]

    built = build() if way == "built before prepare" else []
    net = arm.prepare(model, optimizer)
    built = built or build()
    train(net, optimizer, arm, after_step=lambda: [scheduler.step() for scheduler in built])
    return weights(model) | {"lr": optimizer.param_groups[0]["lr"]}


@case(
    "two optimizers for one model",
    "exact",
    why="Each `step()` takes what its optimizer holds; give `prepare` both in a list.",
)
def two_optimizers(arm: Arm) -> Values:
    model = chain()
    first = sgd(model[0].parameters())
    second = torch.optim.AdamW([*model[2:].parameters()], lr=0.01)
    net = arm.prepare(model, first, second)
    for step in range(STEPS):
        first.zero_grad()
        second.zero_grad()
        loss_of(net, arm, step).backward()
        first.step()
        second.step()
    return weights(model) | state_of(first, "first ") | state_of(second, "second ")


@case(
    "two optimizers that step by turns",
    "exact",
    why="A gradient that no `step()` has used is summed all the same, and then forgotten.",
)
def by_turns(arm: Arm) -> Values:
    model = chain()
    first = sgd(model[0].parameters())
    second = torch.optim.AdamW([*model[2:].parameters()], lr=0.01)
    net = arm.prepare(model, first, second)
    for step in range(STEPS):
        model.zero_grad()
        loss_of(net, arm, step).backward()
        (first if step % 3 else second).step()
    return weights(model)


@case(
    "a second optimizer that prepare was not told of",
    "barrier",
    why="Tensors that it reads are settled first; give `prepare` both, and nothing waits.",
)
def unknown_optimizer(arm: Arm) -> Values:
    model = chain()
    first = sgd(model[0].parameters())
    second = torch.optim.AdamW([*model[2:].parameters()], lr=0.01)
    net = arm.prepare(model, first)
    for step in range(STEPS):
        model.zero_grad()
        loss_of(net, arm, step).backward()
        first.step()
        second.step()
    return weights(model)


@case(
    "Muon for matrices and AdamW for the rest",
    "exact",
    why="Two optimizers for one model, given to `prepare` in a list.",
    rounding="bfloat16",
)
def muon_and_adamw(arm: Arm) -> Values:
    model = chain()
    first = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.02)
    second = torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=0.01)
    net = arm.prepare(model, first, second)
    for step in range(STEPS):
        model.zero_grad()
        loss_of(net, arm, step).backward()
        first.step()
        second.step()
    return weights(model)


@case(
    "step(closure)",
    "barrier",
    why="The closure's gradients are used in the same call, so that call waits for them.",
)
def closure(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    losses: Values = {}
    for step in range(STEPS):

        def compute(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(net, arm, step)
            loss.backward()
            return loss

        losses[f"on this rank: loss {step}"] = optimizer.step(compute).detach()
    return weights(model) | losses


@case(
    "hooks on step, before and after",
    "barrier",
    why="They run once per step and see all gradients and all weights, so the step waits.",
)
def step_hooks(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    seen: Values = {}

    def before(*_: object) -> None:
        seen[f"gradient {len(seen)}"] = model[5].weight.grad.clone()

    def after(*_: object) -> None:
        seen[f"weight {len(seen)}"] = model[5].weight.detach().clone()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    train(net, optimizer, arm)
    return weights(model) | seen | {"calls": float(len(seen))}


@case(
    "LBFGS",
    "barrier",
    why="One direction is computed from all parameters; a line says so.",
    says="LBFGS may couple parameters",
)
def lbfgs(arm: Arm) -> Values:
    model = matrices()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)
    net = arm.prepare(model, optimizer)
    for step in range(STEPS):

        def compute(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = mean_over_ranks(loss_of(net, arm, step), arm)
            loss.backward()
            return loss

        optimizer.step(compute)
    return weights(model)


def mean_over_ranks(loss: torch.Tensor, arm: Arm) -> torch.Tensor:
    """Give all ranks the same value, by which LBFGS decides, and each its own gradient."""
    if type(arm) is Arm:
        return loss
    mean = loss.detach() / arm.world
    torch.distributed.all_reduce(mean)
    return loss + (mean - loss).detach()


class Sharpness(torch.optim.Optimizer):
    """Climb to the worst point near by, take the gradient there, and step with it from here."""

    def __init__(
        self, parameters: Iterable[Any], base: type[torch.optim.Optimizer], **options: Any
    ):
        super().__init__(parameters, options)
        self.base = base(self.param_groups, **options)

    def _parameters(self) -> list[Any]:
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def climb(self) -> None:
        norm = torch.stack([p.grad.norm() for p in self._parameters()]).norm()
        for p in self._parameters():
            self.state[p]["here"] = p.detach().clone()
            p.add_(p.grad, alpha=float(0.05 / norm))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self._parameters():
            p.copy_(self.state[p]["here"])
        self.base.step()


@case(
    "an optimizer of one's own with two passes per step (SAM)",
    "barrier",
    why="An optimizer that may couple parameters waits for all; a line says so.",
    says="Sharpness may couple parameters",
)
def sharpness(arm: Arm) -> Values:
    model = chain()
    optimizer = Sharpness(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    net = arm.prepare(model, optimizer)
    for step in range(STEPS):
        loss_of(net, arm, step).backward()
        optimizer.climb()
        loss_of(net, arm, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


class Mine(torch.optim.SGD):
    pass


@case(
    "a subclass of one of torch's optimizers",
    "barrier",
    why="It may couple parameters, so every step waits for all; a line says so.",
    says="Mine may couple parameters",
)
def subclass(arm: Arm) -> Values:
    return trained_with(arm, lambda p: Mine(p, lr=0.1, momentum=0.9))
