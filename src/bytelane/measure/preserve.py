"""Save and restore a model, an optimizer and random states around profiling."""

import collections
import contextlib
import copy
import random
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from bytelane.foreign.torch import put_buffer


@contextlib.contextmanager
def preserved(
    modules: Iterable[torch.nn.Module], optimizer: torch.optim.Optimizer | None
) -> Iterator[None]:
    """Restore weights, gradients, buffers, optimizer and random states after the block."""
    modules = [one for module in modules for one in module.modules()]
    parameters = {id(p): p for module in modules for p in module.parameters(recurse=False)}
    if optimizer is not None:
        stepped = (p for group in optimizer.param_groups for p in group["params"])
        parameters |= {id(p): p for p in stepped}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_random_numbers())
        for parameter in parameters.values():
            stack.enter_context(_parameter(parameter))
        for module in modules:
            for name, buffer in module.named_buffers(recurse=False):
                stack.callback(_put_back, module, name, buffer, buffer.detach().clone())
        if optimizer is not None:
            stack.enter_context(_optimizer(optimizer))
        yield


@contextlib.contextmanager
def _parameter(parameter: torch.nn.Parameter) -> Iterator[None]:
    value, gradient = parameter.detach().clone(), parameter.grad
    parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(value)
        parameter.grad = gradient


def _put_back(
    module: torch.nn.Module, name: str, buffer: torch.Tensor, value: torch.Tensor
) -> None:
    with torch.no_grad():
        buffer.copy_(value)
    put_buffer(module, name, buffer)  # a module may have replaced it


@contextlib.contextmanager
def _optimizer(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let the optimizer work on copies of its state and parameter groups."""
    own = dict(vars(optimizer))
    state = {parameter: copy.deepcopy(values) for parameter, values in optimizer.state.items()}
    optimizer.state = collections.defaultdict(dict, state)
    optimizer.param_groups = [dict(group) for group in optimizer.param_groups]
    try:
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(own)


@contextlib.contextmanager
def _random_numbers() -> Iterator[None]:
    pythons, numpys = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count())
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
