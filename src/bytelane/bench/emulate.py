"""Emulate a model: each layer sleeps for the time that the job gives it.

Eight workers fit on two cores that way, and the network is real. Gradients differ by
rank, tensor, position and iteration, and are whole numbers, so that the final weights are known
exactly: a swapped, stale or misplaced piece cannot hide.
"""

import time
from typing import Any

import numpy as np
import torch

from bytelane.bench.cores import CoreQueue
from bytelane.bench.experiment import Conditions
from bytelane.foreign.torch import without_torch_function
from bytelane.job import Job, Layer

# Prime, so that no usual piece size is a multiple of it and shifted pieces differ.
PERIOD = 1021


class Accelerator:
    """Sleeps to deadlines, one after the other, as a queue of kernels would be worked off.

    The host's work between two kernels (Python, autograd, hooks) overlaps with the accelerator, and
    does not delay the next kernel, which begins where the last one ended. A backward pass never
    waits for the network, and is one such queue. A forward pass does, for weights: where the host
    has *waited* the queue has run empty, and the next layer begins late. The CPU time of the thread
    tells work from waiting. Time in which the thread was runnable, but other hosts had the cores,
    counts as work: each host of a cluster has cores of its own.
    """

    def __init__(self) -> None:
        self._busy_until = 0.0
        self._overslept = 0.0
        self._queue = CoreQueue()
        self._worked = self._worked_s()
        self._is_in_backward = False

    def forward(self, seconds: float) -> None:
        self._is_in_backward = False
        self._begin()
        self._compute(seconds)
        queued = self._worked_s() - self._worked
        # Work that did not fit into its time is not overslept, it is late.
        overslept = time.perf_counter() - self._busy_until - queued
        self._overslept = min(max(overslept, 0.0), 1e-3)

    def backward(self, seconds: float) -> None:
        if not self._is_in_backward:
            self._is_in_backward = True
            self._begin()
        # Reading the CPU time is expensive. Only the forward pass after the last of these needs
        # it, and the oversleeping of that one is too short to matter.
        self._worked, self._overslept = self._worked_s(), 0.0
        self._compute(seconds)

    def _begin(self) -> None:
        worked_s = self._worked_s()
        worked = worked_s - self._worked + self._overslept
        self._busy_until = max(self._busy_until, time.perf_counter() - worked)
        self._worked = worked_s

    def _compute(self, seconds: float) -> None:
        self._busy_until += seconds
        remaining = self._busy_until - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)

    def _worked_s(self) -> float:
        return time.thread_time() + self._queue.waited_s()


class EmulatedModel(torch.nn.Module):
    """One module per layer of the job, holding the tensors that the layer uses."""

    def __init__(self, job: Job, rank: int, conditions: Conditions | None = None) -> None:
        super().__init__()
        self.iteration = 0
        self._pace = _Pace(conditions or Conditions(), rank, len(job.layers))
        self.weights = [torch.nn.Parameter(torch.zeros(t.bytes // 4)) for t in job.tensors]
        accelerator = Accelerator()
        names = _unique([layer.name for layer in job.layers])
        for index, (name, layer) in enumerate(zip(names, job.layers, strict=True)):
            used = [t for t, tensor in enumerate(job.tensors) if index in tensor.layers]
            module = _EmulatedLayer(layer, index, accelerator, self._pace)
            for t in used:
                # A tied weight gets its gradient where it is used first; other uses add nothing.
                first = job.tensors[t].complete_after == index
                pattern = _pattern(t, self.weights[t].numel()) if first else None
                module.register_parameter(f"weight{t}", self.weights[t])
                module.gradients.append(_Gradient(self, rank, t, pattern))
            self.add_module(name, module)

    def begin(self, iteration: int) -> None:
        """Set the iteration, which determines gradients and times."""
        self.iteration = iteration
        self._pace.begin(iteration)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.children():
            x = module(x)
        return x


class _Pace:
    """Factors on the job's times, for each pass of each layer."""

    def __init__(self, conditions: Conditions, rank: int, layers: int) -> None:
        self._jitter = conditions.jitter
        self._rank = rank
        self._even = np.full((2, layers), conditions.slow_rank_factor(rank))
        self.begin(0)

    def begin(self, iteration: int) -> None:
        """Draw the factors for this rank and iteration, the same for every contender."""
        self.forward, self.backward = self._even
        if self._jitter:
            random = np.random.default_rng((self._rank, iteration))
            noise = np.exp(self._jitter * random.standard_normal(self._even.shape))
            self.forward, self.backward = self._even * noise


class _Gradient:
    """Makes the gradient of one weight."""

    def __init__(
        self, model: EmulatedModel, rank: int, tensor: int, pattern: torch.Tensor | None
    ) -> None:
        self._model = model
        self._rank = rank
        self._tensor = tensor
        self._pattern = pattern

    def make(self) -> torch.Tensor | None:
        if self._pattern is None:
            return None
        return self._pattern + gradient_shift(self._rank, self._tensor, self._model.iteration)


class _EmulatedLayer(torch.nn.Module):
    def __init__(self, layer: Layer, index: int, accelerator: Accelerator, pace: _Pace) -> None:
        super().__init__()
        self.layer = layer
        self.index = index
        self.accelerator = accelerator
        self.pace = pace
        self.gradients: list[_Gradient] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.parameters(recurse=False)
        result: torch.Tensor = _Emulated.apply(x, self, *weights)  # type: ignore[no-untyped-call]
        return result


class _Emulated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, module: _EmulatedLayer, *weights: torch.Tensor
    ) -> torch.Tensor:
        seconds = module.layer.forward_s * module.pace.forward[module.index]
        module.accelerator.forward(seconds)
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        module: _EmulatedLayer = ctx.module
        # A real backward pass computes in C++, where no torch function is intercepted.
        with without_torch_function():
            gradients = [gradient.make() for gradient in module.gradients]
        seconds = module.layer.backward_s * module.pace.backward[module.index]
        module.accelerator.backward(seconds)
        return (outputs[0], None, *gradients)


def gradient_shift(rank: int, tensor: int, iteration: int) -> int:
    """Return what rank and iteration add to a tensor's pattern."""
    return (17 * rank + 5 * tensor + 3 * iteration) % 97


def expected_weight(tensor: int, count: int, world: int, iterations: int) -> torch.Tensor:
    """Return the exact weights after plain SGD with a learning rate of 1, starting from zero."""
    shifts = sum(gradient_shift(r, tensor, k) for r in range(world) for k in range(iterations))
    return -(_pattern(tensor, count) * iterations + shifts / world)


def _pattern(tensor: int, count: int) -> torch.Tensor:
    return (torch.arange(count) + 31 * tensor).remainder(PERIOD).to(torch.float32)


def _unique(names: list[str]) -> list[str]:
    """Make module names of layer names: no dots, none twice."""
    plain = [name.replace(".", "_") for name in names]
    return [n if plain.count(n) == 1 else f"{n}_{i}" for i, n in enumerate(plain)]
