"""Where a model is to be observed: at the modules that use its parameters.

Every call of such a module is a layer of the job, so a module that is called several times is
several layers with one set of tensors.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from bytelane.errors import NotSupported

ROOT = "(model)"


class Gates(NamedTuple):
    """Where a model is to be observed."""

    roots: tuple[torch.nn.Module, ...]
    """What the training loop calls: usually the model itself."""
    modules: dict[torch.nn.Module, str]
    parameters: dict[str, torch.nn.Parameter]
    """Those that are to be trained."""
    users: dict[str, frozenset[str]]
    """By parameter, the gates of the modules that use it."""


class Seen(NamedTuple):
    """What an iteration has shown."""

    called: set[torch.nn.Module]
    trained: set[torch.Tensor]
    """The parameters that got a gradient."""


def refuse_wrapped(model: torch.nn.Module) -> None:
    """Refuse what hides the layers, or does more than to compute them."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise NotSupported(
            "the model is wrapped in DistributedDataParallel, whose communication would count as "
            "computing; leave the wrapper out in a run with one process, or call "
            "bytelane.profile(model.module, batch)"
        )
    if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None:
        raise NotSupported("torch.compile hides the layers of a model; profile it without")


@contextlib.contextmanager
def look_at(model: torch.nn.Module) -> Iterator[Seen]:
    """Collect what runs, and what gets a gradient."""
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
) -> Gates:
    """Find for every parameter the modules that use it, and put gates there.

    That is the module that owns it. If this one is never called, as nn.MultiheadAttention's
    out_proj, and there is a gradient all the same, it is the next module around it that is called.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    name_of = {module: name or ROOT for name, module in model.named_modules()}
    first_name = {parameter: name for name, parameter in model.named_parameters()}
    users: dict[str, set[str]] = {name: set() for name in first_name.values()}
    gated: dict[torch.nn.Module, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        around = list(_around(name)) if parameter in seen.trained else [next(_around(name))]
        for user in (modules[one] for one in around):
            if user in seen.called:
                gated[user] = name_of[user]
                users[first_name[parameter]].add(name_of[user])
                break
    return Gates(
        roots=(model,) if roots is None else tuple(roots),
        modules=gated,
        parameters={name: p for name, p in model.named_parameters() if p.requires_grad},
        users={name: frozenset(used) for name, used in users.items()},
    )


def every_call(model: torch.nn.Module) -> Gates:
    """Put a gate on every module there is, for those who want to see them all."""
    gates = find_gates(model, Seen(set(model.modules()), set()))
    names = {module: name or ROOT for name, module in model.named_modules()}
    return gates._replace(modules=names)


def when_complete(parameter: torch.Tensor, call: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """Call this whenever a gradient is complete."""
    hook = parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]
    assert isinstance(hook, RemovableHandle)
    return hook


def _around(name: str) -> Iterator[str]:
    """Name the modules around a parameter, the innermost first."""
    while name:
        name = name.rpartition(".")[0]
        yield name
