"""Profile a model: train a few iterations with hooks, and as many without."""

import resource
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from bytelane.errors import InputError
from bytelane.foreign.torch import tree_iter, tree_map_only
from bytelane.measure.calibrate import calibrate, in_turns
from bytelane.measure.clock import clock_for
from bytelane.measure.observation_points import (
    ObservationPoints,
    every_call,
    find_gates,
    look_at,
    refuse_wrapped,
)
from bytelane.measure.observe import Observer
from bytelane.measure.preserve import preserved
from bytelane.measure.record import Clock, Recorder
from bytelane.measure.result import Profile, TensorUse, make_profile
from bytelane.values import as_whole, require_whole

Loss = Callable[..., torch.Tensor]
# Each costs 0.25 us or more, and there are mostly many more if any.
MANY_FAULTS = 1000
MOST_ITERATIONS = 1_000_000


def profile_model(
    model: torch.nn.Module,
    batch: Any,
    loss: Loss | None,
    optimizer: torch.optim.Optimizer | None,
    *,
    iterations: int,
    warmup: int,
    clock: Clock | None = None,
    every_module: bool = False,
) -> Profile:
    """Implement :func:`bytelane.profile`; tests bring their own clock.

    With ``every_module`` each call of any module is a layer, with parameters or without.
    """
    require_iterations(iterations, warmup)
    refuse_wrapped(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("the model has no parameter to train; there is nothing to synchronise")
    recorder = Recorder(clock or clock_for(model))
    loop = _Loop(model, batch, loss, optimizer, recorder)
    mine = [model, loss] if isinstance(loss, torch.nn.Module) else [model]
    with preserved(mine, optimizer):
        with look_at(model) as seen:
            loop.iterate()
        gates = every_call(model) if every_module else find_gates(model, seen)
        for _ in range(warmup - 1):
            loop.iterate()
        recorder.forget()
        before = _page_faults()
        in_turns(Observer(gates, recorder), loop.iterate, iterations)
        faults = (_page_faults() - before) / (2 * iterations)
        found = recorder.iterations()
    mark_s = calibrate(recorder.clock, next(model.parameters()).device)
    notes = _notes(model, faults)
    return make_profile(type(model).__name__, found, tensors_of(gates), mark_s, notes)


def require_iterations(iterations: int, warmup: int) -> None:
    if as_whole(iterations, "iterations") < 3:
        raise InputError(f"{iterations} iterations are too few for a median; use 3 or more")
    if as_whole(warmup, "warmup") < 1:
        raise InputError(f"a warm-up of {warmup} iterations is not possible; use 1 or more")
    require_whole(iterations, "iterations", 3, MOST_ITERATIONS)
    require_whole(warmup, "warmup", 1, MOST_ITERATIONS)


def _notes(model: torch.nn.Module, faults: float) -> list[str]:
    notes = []
    if not model.training:
        notes.append("the model is in eval mode, as it was given")
    if faults > MANY_FAULTS:
        notes.append(
            f"{faults:.0f} page faults per iteration: memory is returned and fetched again, and "
            "your own loop may differ; MALLOC_TRIM_THRESHOLD_=17179869184 and "
            "MALLOC_MMAP_THRESHOLD_=33554432 in the environment avoid that"
        )
    return notes


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def tensors_of(gates: ObservationPoints) -> list[TensorUse]:
    """Return the tensors to synchronise, if they get a gradient."""
    return [
        TensorUse(name, p.numel() * p.element_size(), gates.users[name])
        for name, p in gates.parameters.items()
        if p.numel()
    ]


class _Loop:
    """A plain training loop."""

    def __init__(
        self,
        model: torch.nn.Module,
        batch: Any,
        loss: Loss | None,
        optimizer: torch.optim.Optimizer | None,
        recorder: Recorder,
    ) -> None:
        self._model = model
        self._loss = loss
        self._optimizer = optimizer
        self._recorder = recorder
        self._loader = _endless(batch) if isinstance(batch, DataLoader) else None
        self._batch = batch
        self._device = next(model.parameters()).device
        self._elsewhere: bool | None = None  # until the first batch has been seen

    def iterate(self) -> None:
        recorder = self._recorder
        recorder.begin()
        batch = self._next_batch()
        value = self._forward(batch)
        recorder.mark("backward")
        value.backward()  # type: ignore[no-untyped-call]
        if self._optimizer is not None:
            recorder.mark("update")
            self._optimizer.step()
            self._optimizer.zero_grad()
        recorder.end()
        self._model.zero_grad()

    def _next_batch(self) -> Any:
        batch = self._batch
        if self._loader is not None:
            self._recorder.mark("load")
            batch = next(self._loader)
            self._recorder.mark("other")
        if self._elsewhere is None:
            self._elsewhere = any(device != self._device for device in _devices(batch))
        if self._elsewhere:
            self._recorder.mark("copy")
            batch = tree_map_only(torch.Tensor, lambda t: t.to(self._device), batch)
            self._recorder.mark("other")
        return batch

    def _forward(self, batch: Any) -> torch.Tensor:
        if isinstance(batch, Mapping):
            return _value(self._model(**batch), self._loss, ())
        if not isinstance(batch, (tuple, list)):
            return _value(self._model(batch), self._loss, ())
        if self._loss is None:
            return _value(self._model(*batch), None, ())
        *inputs, target = batch
        return _value(self._model(*inputs), self._loss, (target,))


def _devices(batch: Any) -> list[torch.device]:
    return [leaf.device for leaf in tree_iter(batch) if isinstance(leaf, torch.Tensor)]


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Repeat a data loader for ever."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise InputError("the data loader has no batch to give")


def _value(output: Any, loss: Loss | None, target: tuple[Any, ...]) -> torch.Tensor:
    """Reduce the output of the model to one number, the loss."""
    if loss is not None:
        return loss(output, *target)
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None:
        found = output[0] if isinstance(output, (tuple, list)) and output else output
    if not isinstance(found, torch.Tensor):
        raise InputError(
            f"the model returns a {type(output).__name__} without a loss; "
            "give loss=..., a function that makes a number of it"
        )
    return found.sum()
