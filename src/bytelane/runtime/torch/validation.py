"""Validate a model and its optimizers: refuse unsupported ones before training, with a remedy."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from bytelane.foreign.torch import can_be_hooked
from bytelane.runtime.torch.parameters import parameters_of
from bytelane.runtime.torch.sparse_gradients import sparse_tables

SUPPORTED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def first_problem(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    sparse_rows: bool = False,
) -> str:
    """Return the first problem that would otherwise be silent, or an empty text.

    ``sparse_rows``: whether row-sparse gradients can be summed.
    """
    return next(_problems(model, optimizers, sparse_rows), "")


def model_problem(model: torch.nn.Module, *, sparse_rows: bool = False) -> str:
    """Return the model's first problem that would otherwise be silent, or an empty text."""
    return next(_model_problems(model, sparse_rows), "")


def argument_problem(model: Any, optimizers: Sequence[Any]) -> str:
    """Return why these are no model and optimizers that can be hooked, or an empty text."""
    return next(_argument_problems(model, optimizers), "")


def _argument_problems(model: Any, optimizers: Sequence[Any]) -> Iterator[str]:
    if not issubclass(type(model), torch.nn.Module):
        yield f"{_name(model)} is no torch.nn.Module; give prepare() a model, then its optimizer"
    if not optimizers:
        yield "the list of optimizers is empty; give prepare() those that train the model"
    for optimizer in optimizers:
        if not issubclass(type(optimizer), torch.optim.Optimizer):
            yield f"{_name(optimizer)} is no torch.optim.Optimizer; {_inner(optimizer)}"
        if not _calls_step_hooks(optimizer):
            yield (
                f"{_name(optimizer)} does not call torch.optim.Optimizer.__init__, so its step() "
                f"runs no hooks; {_inner(optimizer)}"
            )
    for optimizer, times in Counter(map(id, optimizers)).items():
        if times > 1:
            twice = next(one for one in optimizers if id(one) == optimizer)
            yield f"the same {_name(twice)} is given twice; give prepare() each optimizer once"


def _calls_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether ``Optimizer.__init__`` has run, which makes the class's step() call hooks."""
    step_is_patched = getattr(type(optimizer).step, "hooked", False)
    return step_is_patched and can_be_hooked(optimizer)


def _inner(outer: Any) -> str:
    """Say what to give instead: an optimizer that this object wraps, if there is one."""
    for name, value in getattr(outer, "__dict__", {}).items():
        if issubclass(type(value), torch.optim.Optimizer):
            return (
                f"give prepare() the {_name(value)} inside it, its attribute {name}, and step the "
                f"{_name(outer)} as before"
            )
    return "give prepare() the optimizer itself, or a list of optimizers"


def _name(thing: Any) -> str:
    return type(thing).__name__


def _problems(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], sparse_rows: bool
) -> Iterator[str]:
    yield from _argument_problems(model, optimizers)
    yield from _model_problems(model, sparse_rows)
    known = {id(p) for p in model.parameters()}
    strangers = [p for o in optimizers for p in parameters_of(o) if id(p) not in known]
    if strangers:
        shape = tuple(strangers[0].shape)
        yield f"the optimizer holds a parameter of shape {shape} that is not in the model"


def _model_problems(model: torch.nn.Module, sparse_rows: bool) -> Iterator[str]:
    for path, module in model.named_modules():
        name = path or "the model"
        if isinstance(module, DistributedDataParallel):
            wrapper = "DistributedDataParallel"
            yield f"{name} is wrapped in {wrapper}; give prepare() the model inside it"
        if type(module).__name__ == "FullyShardedDataParallel" or hasattr(module, "reshard"):
            yield f"{name} is sharded by FSDP; give prepare() the plain module"
        if isinstance(module, torch.jit.ScriptModule):
            yield f"{name} is scripted or traced; give prepare() the plain module"
    if not sparse_rows:
        for name in sparse_tables(model).values():
            yield (
                f"{name} has sparse gradients, which only parameter servers sum: give prepare() "
                'sync="ps", or build it with sparse=False'
            )
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in trained.items():
        lazy: bool = torch.nn.parameter.is_lazy(parameter)
        if lazy:
            yield f"{name} is a lazy parameter; run one batch through the model first"
        if parameter.device.type != "cpu":
            yield f"{name} is on {parameter.device}; only CPU tensors are supported so far"
        if parameter.is_inference():
            yield f"{name} was made in inference_mode; make the model outside of it"
        if parameter.dtype not in SUPPORTED_DTYPES:
            yield f"{name} is {parameter.dtype}; float16, bfloat16, float32 and float64 are fine"
