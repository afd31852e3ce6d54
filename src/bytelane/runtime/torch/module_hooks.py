"""Module hooks that survive deepcopy, pickle and torch.compile.

A user may ``deepcopy`` or pickle a prepared model. The copy is a plain model: its hooks do nothing,
and it does not drag engine, sockets and locks along.

A model compiled before ``prepare`` has one hook, outside the compiled code. A model compiled later
has our hooks inside: the graph is broken there, and the result is right.
"""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch

from bytelane.errors import NotSupported
from bytelane.foreign.torch import compiled_call, is_compiled_wrapper, set_compiled_call

Function = TypeVar("Function", bound=Callable[..., Any])
# The reason that torch.compile gives for a graph break at one of our hooks.
REASON = "bytelane waits for weights here; compile before prepare()"


def outside_compiled_code(function: Function) -> Function:
    """Never compile this function, even if its caller is compiled."""
    disable: Callable[..., Function] = torch.compiler.disable
    return disable(function, reason=REASON)


class ModuleHook:
    """A module hook that calls the runtime; a copy of it does nothing."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    @outside_compiled_code
    def __call__(self, *_: Any) -> None:
        self._call()

    def __deepcopy__(self, memo: object) -> "ModuleHook":
        return ModuleHook(_nothing)

    def __reduce__(self) -> tuple[type["ModuleHook"], tuple[Callable[[], None]]]:
        return ModuleHook, (_nothing,)


def refuse_scripting() -> NoReturn:
    """Raise a sentence: ``torch.jit.script`` calls a module's ``__prepare_scriptable__`` first."""
    raise NotSupported(
        "a prepared model cannot be scripted, since its hooks need Python; load its state_dict() "
        "into a model that is not prepared, and script that one"
    )


def is_compiled(module: torch.nn.Module) -> bool:
    """Tell whether calling this module runs compiled code."""
    return is_compiled_wrapper(module) or is_compiled_in_place(module)


def is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Tell whether ``module.compile()`` was called: then its hooks are compiled too."""
    return compiled_call(module) is not None


def around_compiled(
    module: torch.nn.Module, before: Callable[[], None], after: Callable[[], None]
) -> None:
    """Call these around the compiled code of a module that was compiled in place."""
    compiled = compiled_call(module)
    assert compiled is not None

    def call(*args: Any, **kwargs: Any) -> Any:
        before()
        try:
            return compiled(*args, **kwargs)
        finally:
            after()

    set_compiled_call(module, call)


def _nothing() -> None:
    pass
