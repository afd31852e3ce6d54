"""The ways to train that are compared: DDP, ours, ours with a barrier, and each rank on its own."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import bytelane
from cases.probe import Probe

Net = Any  # what is called as the model: a module, wrapped or not
Batch = tuple[torch.Tensor, torch.Tensor]

# Small parts and a small window: many operations, whose order matters, from the fourth step on.
KNOBS: dict[str, Any] = {"policy": "bytescheduler", "partition": "512B", "credit": "1KiB"}
FEATURES, CLASSES = 12, 8


class Arm:
    """What a case needs of the ways to train; this one synchronises nothing."""

    is_ddp = False

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.prepared = False

    def prepare(
        self, model: torch.nn.Module, *optimizers: torch.optim.Optimizer, **ddp: Any
    ) -> Net:
        """Return what to call in place of the model; the other keywords are for DDP only."""
        return model

    def frozen_changed(self, model: torch.nn.Module) -> Net:
        """Return what to call since other parameters than before want gradients."""
        return model

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        return nullcontext()

    def join(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        return nullcontext()

    def batch(self, step: int) -> Batch:
        """Return data that differ by rank and step; an iteration begins with that."""
        return make_batch(self.rank, step)

    def pause(self, step: int) -> None:
        """The forward pass of this step is over: a moment at which a rank may be late."""


class Ddp(Arm):
    is_ddp = True

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)
        self._wrapped: dict[int, DistributedDataParallel] = {}

    def prepare(
        self, model: torch.nn.Module, *optimizers: torch.optim.Optimizer, **ddp: Any
    ) -> Net:
        if not any(p.requires_grad for p in model.parameters()):
            return model  # DDP refuses a model with nothing to train
        self._wrapped[id(model)] = DistributedDataParallel(model, **ddp)
        return self._wrapped[id(model)]

    def frozen_changed(self, model: torch.nn.Module) -> Net:
        # DDP asks once, when it wraps, and would leave out what is unfrozen later.
        del self._wrapped[id(model)]  # with its hooks
        return self.prepare(model)

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        return self._wrapped[id(model)].no_sync()

    def join(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        return Join([self._wrapped[id(model)]])


class Ours(Arm):
    """``bytelane.prepare`` with knobs of one's own; a probe sees whether ``step()`` waits."""

    def __init__(
        self,
        rank: int,
        world: int,
        probe: Probe | None = None,
        knobs: Mapping[str, Any] = KNOBS,
        **more: Any,
    ) -> None:
        super().__init__(rank, world)
        self._probe = probe
        self._options = {**knobs, **more}

    def prepare(
        self, model: torch.nn.Module, *optimizers: torch.optim.Optimizer, **ddp: Any
    ) -> Net:
        trained_by: Any = optimizers[0] if len(optimizers) == 1 else list(optimizers)
        bytelane.prepare(model, trained_by, timeout_s=20.0, **self._options)
        self.prepared = True
        return model

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        return bytelane.no_sync(model)

    def join(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        return bytelane.join(model)

    def batch(self, step: int) -> Batch:
        if self._probe is not None:
            self._probe.begin(step)
        return super().batch(step)

    def pause(self, step: int) -> None:
        if self._probe is not None:
            self._probe.pause(step)


def make_batch(rank: int, step: int) -> Batch:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(8, FEATURES, generator=generator)
    return inputs, torch.randint(0, CLASSES, (8,), generator=generator)
