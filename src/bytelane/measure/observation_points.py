"""Find the modules at which a model is observed: those that use its parameters.

Every call of such a module is a layer of the job, so a module that is called several times is
several layers with one set of tensors.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from bytelane.errors import NotSupported
from bytelane.foreign.torch import compiled_call, inside_compiled
from bytelane.parameter_map import ROOT, parameters_used_by, using_modules


class ObservationPoints(NamedTuple):
    """The modules and parameters at which a model is observed."""

    roots: tuple[torch.nn.Module, ...]
    """The modules that the training loop calls: usually the model itself."""
    modules: dict[torch.nn.Module, str]
    parameters: dict[str, torch.nn.Parameter]
    """The parameters that are trained."""
    users: dict[str, frozenset[str]]
    """By parameter, the gates of the modules that use it."""


class Seen(NamedTuple):
    """Modules and parameters seen in an iteration."""

    called: set[torch.nn.Module]
    trained: set[torch.Tensor]
    """The parameters that got a gradient."""


def refuse_wrapped(model: torch.nn.Module) -> None:
    """Refuse a model in DistributedDataParallel or torch.compile."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise NotSupported(
            "the model is wrapped in DistributedDataParallel, whose communication would count as "
            "computing; leave the wrapper out in a run with one process, or call "
            "bytelane.profile(model.module, batch)"
        )
    if inside_compiled(model) is not model or compiled_call(model) is not None:
        raise NotSupported("torch.compile hides the layers of a model; profile it without")


@contextlib.contextmanager
def look_at(model: torch.nn.Module) -> Iterator[Seen]:
    """Collect the modules that run and the parameters that get a gradient."""
    seen = Seen(set(), set())
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            hook = module.register_forward_pre_hook(lambda module, _: seen.called.add(module))
            stack.callback(hook.remove)
        for parameter in model.parameters():
            if parameter.requires_grad:
                stack.callback(when_complete(parameter, seen.trained.add).remove)
        yield seen


def find_gates(
    model: torch.nn.Module, seen: Seen, roots: Sequence[torch.nn.Module] | None = None
) -> ObservationPoints:
    """Find for every parameter the modules that use it, and put gates there.

    That is the module that owns it. If this one is never called, as nn.MultiheadAttention's
    out_proj, and there is a gradient all the same, it is the next module around it that is called.
    """
    name_of = {module: name or ROOT for name, module in model.named_modules()}
    first_name = {parameter: name for name, parameter in model.named_parameters()}
    users: dict[str, set[str]] = {name: set() for name in first_name.values()}
    gated: dict[torch.nn.Module, str] = {}
    for _, module in using_modules(model, seen.called.__contains__):
        own = set(module.parameters(recurse=False))
        for parameter in parameters_used_by(module, seen.called.__contains__):
            if parameter in own or parameter in seen.trained:
                gated[module] = name_of[module]
                users[first_name[parameter]].add(name_of[module])
    return ObservationPoints(
        roots=(model,) if roots is None else tuple(roots),
        modules=gated,
        parameters={name: p for name, p in model.named_parameters() if p.requires_grad},
        users={name: frozenset(used) for name, used in users.items()},
    )


def every_call(model: torch.nn.Module) -> ObservationPoints:
    """Put a gate on every module, with parameters or without."""
    gates = find_gates(model, Seen(set(model.modules()), set()))
    names = {module: name or ROOT for name, module in model.named_modules()}
    return gates._replace(modules=names)


def when_complete(parameter: torch.Tensor, call: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """Call a function whenever the gradient of a parameter is complete."""
    hook = parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]
    assert isinstance(hook, RemovableHandle)
    return hook
