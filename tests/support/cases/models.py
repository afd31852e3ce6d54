"""Models: frozen, unused, shared, odd in shape, with buffers, checkpointed."""

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from cases.arms import CLASSES, FEATURES, Arm
from cases.compare import Values
from cases.parts import (
    HIDDEN,
    STEPS,
    chain,
    gradients,
    loss_of,
    prepared,
    state_of,
    train,
    weights,
)
from cases.registry import case

# --- frozen ---------------------------------------------------------------------------------------


@case("frozen parameters", "exact", why="They are neither sent nor waited for.")
def frozen(arm: Arm) -> Values:
    model = chain()
    model[0].requires_grad_(False)
    model[5].bias.requires_grad_(False)
    model, net, optimizer = prepared(arm, model)
    train(net, optimizer, arm)
    return weights(model) | gradients(model)


@case(
    "unfreezing later",
    "exact",
    why="From the next step on they are summed, too. DDP has to be wrapped anew for that.",
)
def unfrozen(arm: Arm) -> Values:
    model = chain()
    model[0].requires_grad_(False)
    model, net, optimizer = prepared(arm, model)
    train(net, optimizer, arm, steps=range(20, 24))
    optimizer.zero_grad()
    model[0].requires_grad_(True)
    net = arm.frozen_changed(model)
    train(net, optimizer, arm)
    return weights(model) | state_of(optimizer)


@case(
    "freezing later",
    "exact",
    why="From the next step on they are not waited for. DDP has to be wrapped anew for that.",
)
def frozen_later(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    train(net, optimizer, arm, steps=range(20, 24))
    optimizer.zero_grad()
    model[2].requires_grad_(False)
    net = arm.frozen_changed(model)
    train(net, optimizer, arm)
    return weights(model) | state_of(optimizer)


class Adapted(nn.Module):
    """A frozen layer, and a small trained one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, CLASSES).requires_grad_(False)
        self.down = nn.Linear(FEATURES, 2, bias=False)
        self.up = nn.Linear(2, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@case("adapters beside frozen weights (LoRA)", "exact", why="As frozen parameters.")
def adapted(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm, Adapted())
    train(net, optimizer, arm)
    return weights(model)


# --- unused ---------------------------------------------------------------------------------------


class Branches(nn.Module):
    """A trunk, four branches, of which each forward pass takes those it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(FEATURES, HIDDEN)
        self.branches = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.taken: list[int] = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.trunk(x))
        return self.head(sum(torch.tanh(self.branches[k](hidden)) for k in self.taken))


def taken_by(way: str, rank: int, step: int) -> list[int]:
    return {
        "the same always": [0, 2],
        "another one each step": [step % 4],
        "another one on each rank": [rank % 4],
        "another one each step and rank": [(step + rank) % 4, (step * step + 2 * rank) % 3],
        "only on one rank": [0] + ([1] if rank == 0 else []),
    }[way]


UNUSED = (
    "the same always",
    "another one each step",
    "another one on each rank",
    "another one each step and rank",
    "only on one rank",
)


@case(
    "parameters that are not used",
    "exact",
    why="Unused on all ranks: no gradient, no update. Unused on some: zeros are added for them.",
    ways=(
        "the same always",
        "another one each step",
        "another one on each rank",
        "another one each step and rank",
        "only on one rank",
    ),
)
def unused(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm, Branches(), find_unused_parameters=True)
    for step in range(STEPS + 4):
        optimizer.zero_grad()
        model.taken = taken_by(way, arm.rank, step)
        loss_of(net, arm, step).backward()
        optimizer.step()
    return weights(model) | gradients(model) | state_of(optimizer)


@case(
    "parameters that are not used, with gradients zeroed in place",
    "exact",
    why="An unused parameter's gradient stays zero, and its momentum goes on, as under DDP.",
    ways=("another one each step", "another one each step and rank"),
)
def unused_zeroed_in_place(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm, Branches(), find_unused_parameters=True)
    for step in range(STEPS + 4):
        optimizer.zero_grad(set_to_none=False)
        model.taken = taken_by(way, arm.rank, step)
        loss_of(net, arm, step).backward()
        optimizer.step()
    return weights(model) | gradients(model) | state_of(optimizer)


@case(
    "parameters that are not used, with accumulation",
    "exact",
    why="A parameter that any pass has used, on any rank, is summed.",
    ways=("no_sync", "every pass is summed"),
)
def unused_and_accumulated(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm, Branches(), find_unused_parameters=True)
    for step in range(STEPS + 4):
        optimizer.zero_grad()
        for part in (2, 1, 0):
            model.taken = [(step + part * part + arm.rank) % 4]
            if part and way == "no_sync":
                with arm.no_sync(model):
                    loss_of(net, arm, step + 100 * part).backward()
            else:
                loss_of(net, arm, step + 100 * part).backward()
        optimizer.step()
    return weights(model) | gradients(model)


@case(
    "an output that the loss does not use",
    "exact",
    why="Parameters that only it depends on have no gradient, as any unused parameter.",
)
def unused_output(arm: Arm) -> Values:
    model = Branches()
    model.taken = [0]
    model.forward = lambda x: (Branches.forward(model, x), model.branches[1](model.trunk(x)))  # type: ignore[method-assign]
    model, net, optimizer = prepared(arm, model, find_unused_parameters=True)

    def loss(net: Any, arm: Arm, step: int) -> torch.Tensor:
        inputs, targets = arm.batch(step)
        first, second = net(inputs)
        arm.pause(step)
        loss = nn.functional.cross_entropy(first, targets)
        return loss + second.square().mean() if step % 3 == 0 else loss

    train(net, optimizer, arm, loss_of=loss)
    return weights(model) | gradients(model)


# --- shared ---------------------------------------------------------------------------------------


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.again = nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        for _ in range(3):
            hidden = torch.tanh(self.again(hidden))
        return self.last(hidden)


@case(
    "a module used several times in a forward pass",
    "exact",
    why="Its gradient is sent once, when the last of its uses has added to it.",
)
def reused(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm, Reused())
    train(net, optimizer, arm)
    return weights(model)


class Tied(nn.Module):
    """An embedding that is also the output layer, as a module's parameter or by its function."""

    def __init__(self, functionally: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, HIDDEN)
        self.hidden = nn.Linear(HIDDEN, HIDDEN)
        self.scale = nn.Parameter(torch.ones(HIDDEN))
        self.output = None if functionally else nn.Linear(HIDDEN, CLASSES, bias=False)
        if self.output is not None:
            self.output.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x[:, :4].abs().mul(4).long().clamp(max=CLASSES - 1)
        hidden = torch.tanh(self.hidden(self.embedding(tokens).mean(1))) * self.scale
        if self.output is not None:
            return self.output(hidden)
        return nn.functional.linear(hidden, self.embedding.weight)


@case(
    "tied weights",
    "exact",
    why="One tensor, sent once, updated before the first of its owners uses it.",
    ways=("in two modules", "functionally"),
)
def tied(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm, Tied(functionally=way == "functionally"))
    train(net, optimizer, arm)
    return weights(model)


@case(
    "tied to the model that feeds it",
    "exact",
    why="A parameter used functionally before its owner's forward is up to date there, too.",
)
def used_before_its_owner(arm: Arm) -> Values:
    class Early(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(FEATURES, HIDDEN)
            self.last = nn.Linear(HIDDEN, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            return self.last(hidden + hidden @ self.last.weight.t() @ self.last.weight)

    model, net, optimizer = prepared(arm, Early())
    train(net, optimizer, arm)
    return weights(model)


# --- what torch offers to build with --------------------------------------------------------------


@case(
    "batch normalisation",
    "exact",
    why="Before every training pass all ranks take rank 0's buffers, as under DDP.",
)
def batch_norm(arm: Arm) -> Values:
    layers = (
        nn.Linear(FEATURES, HIDDEN, bias=False),
        nn.BatchNorm1d(HIDDEN),
        nn.Linear(HIDDEN, CLASSES),
    )
    model, net, optimizer = prepared(arm, nn.Sequential(*layers))
    outputs: Values = {}
    for step in range(STEPS):
        train(net, optimizer, arm, steps=[step])
        if step in (1, 4):
            model.eval()
            with torch.no_grad():
                outputs[f"on this rank: output {step}"] = model(torch.ones(2, FEATURES))
            model.train()
    return weights(model) | outputs


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.into(x.view(8, 4, 3))).mean(1))


@case(
    "attention",
    "exact",
    why="It reads its output layer's weight without calling that layer.",
)
def attention(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm, Attention())
    train(net, optimizer, arm)
    return weights(model)


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cells = getattr(nn, kind)(3, 10, num_layers=2, batch_first=True)
        self.out = nn.Linear(10, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(x.view(8, 4, 3))[0][:, -1])


@case("recurrent networks", "exact", why="As any module.", ways=("LSTM", "GRU"))
def recurrent(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm, Recurrent(way))
    train(net, optimizer, arm)
    return weights(model)


@case(
    "parametrised weights",
    "exact",
    why="The tensors that the parametrisation starts from are trained.",
    ways=("weight_norm", "spectral_norm", "orthogonal"),
)
def parametrised(arm: Arm, way: str) -> Values:
    model = chain()
    getattr(parametrizations, way)(model[2])
    model, net, optimizer = prepared(arm, model)
    train(net, optimizer, arm)
    return weights(model)


class Listed(nn.Module):
    """Parameters in lists and dicts, whose own forward never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ParameterList(torch.randn(FEATURES, FEATURES) / 4 for _ in range(3))
        self.named = nn.ParameterDict({"out": torch.randn(FEATURES, CLASSES)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = torch.tanh(x @ step)
        return x @ self.named["out"]


@case(
    "parameters in lists and dicts",
    "exact",
    why="They are waited for by the module that holds the list.",
)
def listed(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm, Listed())
    train(net, optimizer, arm)
    return weights(model)


@case(
    "dropout",
    "exact",
    why="The random state of each rank is not touched.",
)
def dropout(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm, nn.Sequential(chain(), nn.Dropout(0.3)))
    torch.manual_seed(100 + arm.rank)
    train(net, optimizer, arm)
    return weights(model)


# --- odd shapes -----------------------------------------------------------------------------------


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@case("a model with one parameter", "exact", why="There is nothing to order.")
def single(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm, Single())
    train(net, optimizer, arm)
    return weights(model)


@case("a scalar parameter", "exact", why="As any other.")
def scalar(arm: Arm) -> Values:
    class Scaled(Single):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale

    model, net, optimizer = prepared(arm, Scaled())
    train(net, optimizer, arm)
    return weights(model)


@case(
    "a model with nothing to train",
    "exact",
    why="Nothing is done, and a line says so.",
    says="nothing to synchronise",
    synchronises=False,
    probed=False,
)
def nothing(arm: Arm) -> Values:
    model, net, _ = prepared(arm, chain().requires_grad_(False))
    with torch.no_grad():
        output = net(arm.batch(0)[0])
    return weights(model) | {"on this rank: output": output}


@case("a parameter without elements", "exact", why="There is nothing to send of it.")
def empty(arm: Arm) -> Values:
    class Empty(Single):
        def __init__(self) -> None:
            super().__init__()
            self.nothing = nn.Parameter(torch.zeros(0, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.nothing.sum()

    model, net, optimizer = prepared(arm, Empty())
    train(net, optimizer, arm)
    return weights(model)


class Gaps(nn.Module):
    """A parameter with gaps in its memory, and one that lies across."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        wide = torch.randn(FEATURES, 2 * HIDDEN) + rank  # the first rank's counts
        self.weight = nn.Parameter(wide[:, ::2])
        self.across = nn.Parameter(torch.randn(CLASSES, HIDDEN).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight) @ self.across


@case(
    "parameters that are not contiguous",
    "exact",
    why="They are packed when they are sent.",
)
def gaps(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm, Gaps(arm.rank if arm.world > 1 else 0))
    train(net, optimizer, arm)
    return weights(model)


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 2)
        self.second = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = x.view(8, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        return self.second(torch.tanh(self.first(pixels))).flatten(1)


@case("channels_last", "exact", why="The order of elements in memory is each tensor's own.")
def channels_last(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm, Picture().to(memory_format=torch.channels_last))
    train(net, optimizer, arm)
    return weights(model)


# --- activation checkpointing ---------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()) for _ in range(2)
        )
        self.last = nn.Linear(HIDDEN, CLASSES)
        self.order = [0, 1]
        self._reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        for k in self.order:
            hidden = checkpoint(self.blocks[k], hidden, use_reentrant=self._reentrant)
        return self.last(hidden)


@case(
    "activation checkpointing",
    "exact",
    why="A block that is computed again in the backward pass uses the weights of its first time.",
    ways=("use_reentrant=False", "use_reentrant=True"),
)
def checkpointed(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm, Checkpointed(way == "use_reentrant=True"))
    train(net, optimizer, arm)
    return weights(model)


@case(
    "a block checkpointed twice in one forward pass, use_reentrant=False",
    "exact",
    why="Its gradient is complete once.",
)
def checkpointed_twice(arm: Arm) -> Values:
    model = Checkpointed(False)
    model.order = [0, 1, 0]
    model, net, optimizer = prepared(arm, model)
    train(net, optimizer, arm)
    return weights(model)


@case(
    "a block checkpointed twice in one forward pass, use_reentrant=True",
    "rounded",
    why="Each pass through the block is summed by itself. DDP needs `static_graph=True` for that.",
    probed=False,
)
def checkpointed_twice_reentrantly(arm: Arm) -> Values:
    model = Checkpointed(True)
    model.order = [0, 1, 0]
    model, net, optimizer = prepared(arm, model, static_graph=True)
    train(net, optimizer, arm)
    return weights(model)


@case(
    "activation checkpointing with accumulation",
    "exact",
    why="As activation checkpointing, and as accumulation.",
    ways=("use_reentrant=False", "use_reentrant=True"),
)
def checkpointed_and_accumulated(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm, Checkpointed(way == "use_reentrant=True"))
    for step in range(STEPS):
        optimizer.zero_grad()
        with arm.no_sync(model):
            loss_of(net, arm, step + 100).backward()
        loss_of(net, arm, step).backward()
        optimizer.step()
    return weights(model)
