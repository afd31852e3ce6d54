"""Small models and training loops that run on the ranks of a pool, ours and DDP's."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import bytelane

STEPS = 20

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class Tied(torch.nn.Module):
    """An embedding that is also the output layer, used there functionally."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 32)
        self.hidden = torch.nn.Linear(32, 32)
        self.scale = torch.nn.Parameter(torch.ones(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x[:, :4].abs().mul(5).long().clamp(max=15)
        hidden = torch.tanh(self.hidden(self.embedding(tokens).mean(1))) * self.scale
        return torch.nn.functional.linear(hidden, self.embedding.weight)


def chain() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(24, 40),
        torch.nn.Tanh(),
        torch.nn.Linear(40, 60),
        torch.nn.LayerNorm(60),
        torch.nn.Tanh(),
        torch.nn.Linear(60, 16),
    )


class Backwards(torch.nn.Module):
    """Registered in the opposite order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(40, 16)
        self.first = torch.nn.Linear(24, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.relu(self.first(x)))
        return result


class Gaps(torch.nn.Module):
    """A parameter that is a slice of something larger, different on every rank at first."""

    def __init__(self) -> None:
        super().__init__()
        wide = torch.randn(24, 32) + torch.distributed.get_rank()
        self.weight = torch.nn.Parameter(wide[:, :16])
        self.register_buffer("scale", torch.ones(16, 2)[:, 0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight * self.scale


class Empty(torch.nn.Module):
    """A parameter without elements beside an ordinary layer."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(0, 4))
        self.layer = torch.nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + self.nothing.sum()
        return result


class Wide(torch.nn.Module):
    """A parameter of 64 MiB beside an ordinary layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(24, 16)
        self.wide = torch.nn.Parameter(torch.ones(2**24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) * self.wide[:16]
        return result


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "chain": chain,
    "tied": Tied,
    "backwards": Backwards,
    "batch norm": lambda: torch.nn.Sequential(
        torch.nn.Linear(24, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 16)
    ),
    "gaps": Gaps,
    "empty": Empty,
    "wide": Wide,
}


def make(model: str = "chain", optimizer: str = "momentum") -> tuple[Any, Any]:
    torch.manual_seed(7)
    net = MODELS[model]()
    return net, OPTIMIZERS[optimizer](net.parameters())


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(8, 24, generator=generator)
    return inputs, torch.randint(0, 16, (8,), generator=generator)


def loss_of(net: Callable[..., torch.Tensor], rank: int, step: int) -> torch.Tensor:
    inputs, targets = batch(rank, step)
    return torch.nn.functional.cross_entropy(net(inputs), targets)


def train(
    net: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    rank: int,
    *,
    steps: int = STEPS,
    set_to_none: bool = True,
    before_step: Callable[[], object] = lambda: None,
    after_step: Callable[[], object] = lambda: None,
) -> None:
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(net, rank, step).backward()
        before_step()
        optimizer.step()
        after_step()


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def trained_by_ddp(rank: int, model: str, optimizer: str, **loop: Any) -> list[torch.Tensor]:
    net, opt = make(model, optimizer)
    train(DistributedDataParallel(net), opt, rank, **loop)
    return weights(net)


def trained_by_us(
    rank: int, model: str, optimizer: str, prepare: dict[str, Any], **loop: Any
) -> list[torch.Tensor]:
    net, opt = make(model, optimizer)
    bytelane.prepare(net, opt, timeout_s=30, **prepare)
    train(net, opt, rank, **loop)
    return weights(net)


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
