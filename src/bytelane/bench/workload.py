"""The models that contenders train, and the check of their final weights: emulated or real."""

from typing import Protocol

import torch
import torch.distributed as dist

from bytelane.bench.emulate import EmulatedModel, expected_weight
from bytelane.bench.experiment import Conditions
from bytelane.bench.models import load_task
from bytelane.job import Job
from bytelane.measure import profile

# On more than two ranks another order of summing is another rounding.
RELATIVE_TOLERANCE = 1e-4


class Workload(Protocol):
    """A model for one contender, and the check of its final weights."""

    job: Job
    learning_rate: float

    @property
    def model(self) -> torch.nn.Module: ...

    def loss(self, net: torch.nn.Module, iteration: int) -> torch.Tensor:
        """Run the forward pass of this iteration on this rank."""
        ...

    def is_exact(self, weights: dict[str, torch.Tensor], iterations: int) -> bool:
        """Tell whether these are the weights after so many iterations."""
        ...


class Emulated:
    """A model that sleeps for the job's times."""

    learning_rate = 1.0

    def __init__(self, job: Job, conditions: Conditions) -> None:
        self.job = job
        self._model = EmulatedModel(job, dist.get_rank(), conditions)

    @property
    def model(self) -> torch.nn.Module:
        return self._model

    def loss(self, net: torch.nn.Module, iteration: int) -> torch.Tensor:
        self._model.begin(iteration)
        output: torch.Tensor = net(torch.zeros(1, requires_grad=True))
        return output.sum()

    def is_exact(self, weights: dict[str, torch.Tensor], iterations: int) -> bool:
        world = dist.get_world_size()
        by_tensor = {int(name.rpartition("weight")[2]): weight for name, weight in weights.items()}
        return all(
            torch.equal(weight, expected_weight(t, weight.numel(), world, iterations))
            for t, weight in by_tensor.items()
        )


class Real:
    """A model that computes; every rank and iteration has data of its own."""

    learning_rate = 0.01

    def __init__(self, name: str, job: Job) -> None:
        self.job = job
        self._name = name
        torch.manual_seed(0)
        self._task = load_task(name)

    @property
    def model(self) -> torch.nn.Module:
        return self._task.model

    def loss(self, net: torch.nn.Module, iteration: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * iteration + dist.get_rank())
        *inputs, target = self._task.make_batch(generator)
        return self._task.loss(net(*inputs), target)

    def is_exact(self, weights: dict[str, torch.Tensor], iterations: int) -> bool:
        """Compare with plain synchronous training: one all-reduce per tensor."""
        plain = Real(self._name, self.job)
        optimizer = torch.optim.SGD(plain.model.parameters(), lr=self.learning_rate)
        for iteration in range(iterations):
            optimizer.zero_grad()
            plain.loss(plain.model, iteration).backward()  # type: ignore[no-untyped-call]
            for parameter in plain.model.parameters():
                assert parameter.grad is not None
                parameter.grad /= dist.get_world_size()
                dist.all_reduce(parameter.grad)
            optimizer.step()
        wanted = dict(plain.model.named_parameters())
        return all(self._equal(weights[name], wanted[name]) for name in wanted)

    def _equal(self, found: torch.Tensor, wanted: torch.Tensor) -> bool:
        if dist.get_world_size() == 2:
            return torch.equal(found, wanted)
        return torch.allclose(found, wanted, rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE)


def measure_job(name: str) -> Job:
    """Profile a real model on this rank."""
    task = load_task(name)
    batch = task.make_batch(torch.Generator().manual_seed(0))
    return profile(task.model, batch, task.loss, iterations=5).job
