"""Copies, averages, checkpoints, several models, one rank."""

import copy
import io
import pickle
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from cases.arms import CLASSES, FEATURES, Arm
from cases.compare import Values
from cases.parts import HIDDEN, STEPS, chain, loss_of, prepared, sgd, state_of, train, weights
from cases.registry import case

# --- copies and averages --------------------------------------------------------------------------


@case(
    "an exponential moving average of the weights",
    "barrier",
    why="It reads all weights after every step.",
    ways=("copied before prepare", "copied after prepare"),
)
def moving_average(arm: Arm, way: str) -> Values:
    model = chain()
    optimizer = sgd(model.parameters())

    def copied() -> AveragedModel:
        return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    average = copied() if way == "copied before prepare" else None
    net = arm.prepare(model, optimizer)
    average = average or copied()
    train(net, optimizer, arm, after_step=lambda: average.update_parameters(model))
    return weights(model) | weights(average.module, "average of ")


@case(
    "stochastic weight averaging",
    "exact",
    why="It reads all weights at the end of an epoch.",
)
def weight_averaging(arm: Arm) -> Values:
    layers = (
        nn.Linear(FEATURES, HIDDEN, bias=False),
        nn.BatchNorm1d(HIDDEN),
        nn.Linear(HIDDEN, CLASSES),
    )
    model, net, optimizer = prepared(arm, nn.Sequential(*layers))
    average = AveragedModel(model)
    for step in range(STEPS):
        train(net, optimizer, arm, steps=[step])
        if step % 3 == 2:
            average.update_parameters(model)
    update_bn([torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(3))], average)
    return weights(model) | weights(average.module, "average of ")


@case(
    "copy.deepcopy or pickle of a model that is training",
    "exact",
    why="The copy is up to date, and a plain model: it can be trained alone, and nothing is sent.",
    ways=("deepcopy", "pickle"),
)
def copied(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm)
    train(net, optimizer, arm, steps=range(5))
    twin: Any = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    as_copied = weights(twin, "copy of ")
    twin_optimizer = sgd(twin.parameters())
    if arm.rank == 0:
        for step in range(3):
            twin_optimizer.zero_grad()
            loss_of(twin, arm, 200 + step).backward()
            twin_optimizer.step()
    train(net, optimizer, arm, steps=range(5, STEPS))
    trained = {f"on this rank: {name}": p for name, p in weights(twin, "trained copy of ").items()}
    return weights(model) | as_copied | trained


@case(
    "a copy from before prepare as a teacher",
    "exact",
    why="`prepare` has not touched it.",
)
def teacher(arm: Arm) -> Values:
    model = chain()
    frozen = copy.deepcopy(model).requires_grad_(False).eval()
    model, net, optimizer = prepared(arm, model)

    def loss(net: Any, arm: Arm, step: int) -> torch.Tensor:
        inputs, targets = arm.batch(step)
        output = net(inputs)
        arm.pause(step)
        return (
            nn.functional.cross_entropy(output, targets) + (output - frozen(inputs)).square().mean()
        )

    train(net, optimizer, arm, loss_of=loss)
    return weights(model)


# --- checkpoints ----------------------------------------------------------------------------------


def saved(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Go through a file, as users do."""
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    found: dict[str, Any] = torch.load(buffer)
    return found


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@case(
    "saving state_dict in the middle of a run",
    "exact",
    why="The saved weights are up to date; only saving waits.",
)
def saving(arm: Arm) -> Values:
    model = chain()
    optimizer = adamw(model)
    net = arm.prepare(model, optimizer)
    found: Values = {}
    for step in range(STEPS):
        train(net, optimizer, arm, steps=[step])
        if step in (1, 4):
            state = saved(model, optimizer)
            found |= {f"{name} saved at {step}": p for name, p in state["model"].items()}
            momenta = state["optimizer"]["state"]
            found |= {f"momentum {k} saved at {step}": m["exp_avg"] for k, m in momenta.items()}
    return weights(model) | found


@case(
    "going back to a checkpoint in the middle of a run",
    "exact",
    why="Updates that are under way end before anything is loaded.",
)
def loading(arm: Arm) -> Values:
    model = chain()
    optimizer = adamw(model)
    net = arm.prepare(model, optimizer)
    train(net, optimizer, arm, steps=range(5))
    state = saved(model, optimizer)
    train(net, optimizer, arm, steps=range(20, 23))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train(net, optimizer, arm, steps=range(5, STEPS))
    return weights(model) | state_of(optimizer)


@case(
    "resuming a new model from a checkpoint",
    "exact",
    why="The names in it are the model's own, and a checkpoint of either resumes under the other.",
    ways=("loaded before prepare", "loaded after prepare"),
)
def resuming(arm: Arm, way: str) -> Values:
    model = chain()
    optimizer = adamw(model)
    train(arm.prepare(model, optimizer), optimizer, arm, steps=range(3))
    state = saved(model, optimizer)
    del model, optimizer
    model = chain()
    optimizer = adamw(model)
    net = arm.prepare(model, optimizer) if way == "loaded after prepare" else None
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    net = arm.prepare(model, optimizer) if net is None else net
    train(net, optimizer, arm)
    return weights(model) | state_of(optimizer)


@case(
    "weights that differ between ranks at first",
    "exact",
    why="All ranks start from rank 0's.",
)
def different_starts(arm: Arm) -> Values:
    torch.manual_seed(arm.rank)
    model, net, optimizer = prepared(arm)
    train(net, optimizer, arm)
    return weights(model)


# --- several models -------------------------------------------------------------------------------


@case(
    "two models that train each other (GAN)",
    "barrier",
    why="Each is prepared with its own optimizer; the discriminator needs its update at once.",
)
def gan(arm: Arm) -> Values:
    generator = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, FEATURES))
    judge = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
    makes, judges = sgd(generator.parameters()), sgd(judge.parameters())
    make, tell = arm.prepare(generator, makes), arm.prepare(judge, judges)
    for step in range(STEPS):
        real = arm.batch(step)[0]
        fake = make(arm.batch(step + 100)[0])
        arm.pause(step)
        judges.zero_grad()
        (tell(fake.detach()).square().mean() - tell(real).mean()).backward()
        judges.step()
        makes.zero_grad()
        (1 - tell(fake)).square().mean().backward()
        makes.step()
    return weights(generator) | weights(judge, "judge's ")


@case(
    "two prepared models in one loss",
    "exact",
    why="One backward pass fills the gradients of both.",
)
def two_models(arm: Arm) -> Values:
    first = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh())
    second = nn.Linear(HIDDEN, CLASSES)
    optimizers = sgd(first.parameters()), sgd(second.parameters())
    nets = arm.prepare(first, optimizers[0]), arm.prepare(second, optimizers[1])
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(lambda x: nets[1](nets[0](x)), arm, step).backward()
        for optimizer in optimizers:
            optimizer.step()
    return weights(first) | weights(second, "second ")


@case(
    "one model after another",
    "exact",
    why="A model that is dropped closes its sockets.",
)
def one_after_another(arm: Arm) -> Values:
    found: Values = {}
    for k in range(3):
        model, net, optimizer = prepared(arm)
        train(net, optimizer, arm, steps=range(3 + k) if k < 2 else range(STEPS))
        found |= weights(model, f"{k} ")
        del model, net, optimizer
    return found


# --- alone ----------------------------------------------------------------------------------------


@case(
    "one rank, or no process group",
    "exact",
    why="Nothing is done, and a line says so.",
    worlds=(0, 1),
    says="nothing to synchronise",
    synchronises=False,
    probed=False,
)
def alone(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    train(net, optimizer, arm)
    return weights(model)
