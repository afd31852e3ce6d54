"""Row-sparse gradients, which only parameter servers sum."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from cases.arms import CLASSES, Arm, Net
from cases.compare import Values
from cases.parts import HIDDEN, STEPS, gradients, sgd, state_of, train, weights
from cases.registry import case

WORDS = 40


class Words(nn.Module):
    """Embeddings that get sparse gradients, one of them in bags, between dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN, sparse=True)
        self.bags = nn.EmbeddingBag(WORDS, HIDDEN, sparse=True, mode="sum")
        self.dense = nn.Linear(HIDDEN, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.words(words).sum(1) + self.bags(words)
        output: torch.Tensor = self.dense(torch.tanh(found))
        return output


def words_of(rank: int, step: int) -> torch.Tensor:
    """Return few of the words, and often the same."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, WORDS // 2, (8, 5), generator=generator)


def loss_of(net: Net, arm: Arm, step: int) -> torch.Tensor:
    _, targets = arm.batch(step)
    output = net(words_of(arm.rank, step))
    arm.pause(step)
    return nn.functional.cross_entropy(output, targets)


def sparse_adam(model: Words) -> list[torch.optim.Optimizer]:
    tables = [*model.words.parameters(), *model.bags.parameters()]
    return [torch.optim.SparseAdam(tables, lr=0.01), sgd(model.dense.parameters())]


OPTIMIZERS: dict[str, Callable[[Words], list[torch.optim.Optimizer]]] = {
    "SGD": lambda model: [torch.optim.SGD(model.parameters(), lr=0.1)],
    "Adagrad": lambda model: [torch.optim.Adagrad(model.parameters(), lr=0.1)],
    "SparseAdam beside SGD": sparse_adam,
}


def loop(
    net: Net, optimizers: Iterable[torch.optim.Optimizer], arm: Arm, *, set_to_none: bool = True
) -> None:
    """Step several optimizers after every backward pass."""
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none)
        loss_of(net, arm, step).backward()
        for optimizer in optimizers:
            optimizer.step()


@case(
    "row-sparse gradients of an embedding (sparse=True)",
    "servers",
    why="Only touched rows travel, and only those are updated.",
    ways=("SGD", "Adagrad", "SparseAdam beside SGD"),
    says='give prepare() sync="ps"',
)
def rows(arm: Arm, way: str) -> Values:
    model = Words()
    optimizers = OPTIMIZERS[way](model)
    loop(arm.prepare(model, *optimizers), optimizers, arm)
    states = [state_of(optimizer, f"{k}: ") for k, optimizer in enumerate(optimizers)]
    found = weights(model)
    for state in states:
        found |= state
    return found


@case(
    "row-sparse gradients with zero_grad(set_to_none=False)",
    "servers",
    why="A sparse gradient of zero has no rows.",
    says='give prepare() sync="ps"',
)
def zeroed(arm: Arm) -> Values:
    model = Words()
    optimizers = OPTIMIZERS["SGD"](model)
    loop(arm.prepare(model, *optimizers), optimizers, arm, set_to_none=False)
    return weights(model)


@case(
    "row-sparse gradients, accumulated",
    "servers",
    why="The sums hold the rows of all passes.",
    ways=("no_sync", "every pass is summed"),
    says='give prepare() sync="ps"',
    probed=False,
)
def accumulated(arm: Arm, way: str) -> Values:
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    net = arm.prepare(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        if way == "no_sync":
            with arm.no_sync(model):
                loss_of(net, arm, step).backward()
        else:
            loss_of(net, arm, step).backward()
        loss_of(net, arm, 100 + step).backward()
        optimizer.step()
    return weights(model)


@case(
    "row-sparse gradients, read and clipped",
    "servers",
    why="Reading waits, as ever. torch clips their values, but has no norm of them.",
    says='give prepare() sync="ps"',
    probed=False,
)
def read(arm: Arm) -> Values:
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    net = arm.prepare(model, optimizer)
    found: Values = {}

    def look() -> None:
        for name, value in gradients(model).items():
            assert isinstance(value, torch.Tensor)
            if value.is_sparse:
                found[f"rows of {name}"] = float(value.is_coalesced()) + value.coalesce()._nnz()
            found[name] = value.to_dense()
        try:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        except NotImplementedError as error:
            found["clipping says"] = float(len(str(error)))
        found["norm of the dense one"] = nn.utils.clip_grad_norm_(model.dense.parameters(), 0.1)

    train(net, optimizer, arm, loss_of=loss_of, before_step=look)
    return found | weights(model)


@case(
    "row-sparse gradients, loaded from a checkpoint",
    "servers",
    why="Reading a state waits for its updates.",
    says='give prepare() sync="ps"',
    probed=False,
)
def checkpointed(arm: Arm) -> Values:
    model = Words()
    optimizers = sparse_adam(model)
    loop(arm.prepare(model, *optimizers), optimizers, arm)
    kept: Any = [model.state_dict(), *(optimizer.state_dict() for optimizer in optimizers)]
    kept = torch.utils._pytree.tree_map(lambda x: x.clone() if hasattr(x, "clone") else x, kept)
    again = Words()
    more = sparse_adam(again)
    for one, state in zip((again, *more), kept, strict=True):
        one.load_state_dict(state)
    loop(arm.prepare(again, *more), more, arm)
    return weights(again) | weights(model, "before: ")
