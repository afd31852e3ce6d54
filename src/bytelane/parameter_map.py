"""Map a torch model's parameters to the modules that use them, and back.

A parameter is used by the module that owns it. Where that module never runs, because it only holds
parameters (``ParameterList``) or its owner reads them itself (``MultiheadAttention.out_proj``), the
next module around it that runs is the user.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Tells = Callable[[torch.nn.Module], bool]

ROOT = "(model)"
"""The name for the model itself, whose name among its modules is empty."""


def using_modules(
    module: "torch.nn.Module", runs: "Tells", is_one: "Tells" = lambda _: False, name: str = ""
) -> "Iterator[tuple[str, torch.nn.Module]]":
    """Yield the modules that use parameters, with their names.

    ``is_one`` tells which modules run as one with all modules within them.
    """
    if runs(module) and next(parameters_used_by(module, runs, is_one), None) is not None:
        yield name or ROOT, module
    if not is_one(module):
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}" if name else child_name
            yield from using_modules(child, runs, is_one, path)


def parameters_used_by(
    module: "torch.nn.Module", runs: "Tells", is_one: "Tells" = lambda _: False
) -> "Iterator[torch.nn.Parameter]":
    """Yield a module's own parameters, and those of modules within it that never run."""
    yield from module.parameters(recurse=is_one(module))
    if not is_one(module):
        for child in module.children():
            if not runs(child):
                yield from parameters_used_by(child, runs, is_one)
