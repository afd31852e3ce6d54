"""Hooks that survive being copied, and being compiled.

A user may ``deepcopy`` or pickle a prepared model. The copy is a plain model: its hooks do nothing,
and it does not drag engine, sockets and locks along.

What was compiled before ``prepare`` is entered through one gate, outside the compiled code. A model
that is compiled later has our gates inside: the graph is broken there, and the result is right.
"""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch

from bytelane.errors import NotSupported

Function = TypeVar("Function", bound=Callable[..., Any])
# What torch.compile says where it breaks a graph at one of our hooks.
REASON = "bytelane waits for weights here; compile before prepare()"


def outside_compiled_code(function: Function) -> Function:
    """Never compile this, also if what calls it is compiled."""
    disable: Callable[..., Function] = torch.compiler.disable
    return disable(function, reason=REASON)


class Gate:
    """A module hook that calls the runtime; any copy of it is open for ever."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    @outside_compiled_code
    def __call__(self, *_: Any) -> None:
        self._call()

    def __deepcopy__(self, memo: object) -> "Gate":
        return Gate(_nothing)

    def __reduce__(self) -> tuple[type["Gate"], tuple[Callable[[], None]]]:
        return Gate, (_nothing,)


def refuse_scripting() -> NoReturn:
    """Raise a sentence: ``torch.jit.script`` calls a module's ``__prepare_scriptable__`` first."""
    raise NotSupported(
        "a prepared model cannot be scripted, since its hooks need Python; load its state_dict() "
        "into a model that is not prepared, and script that one"
    )


def is_compiled(module: torch.nn.Module) -> bool:
    """Tell whether calling this module runs compiled code."""
    return isinstance(module, torch._dynamo.OptimizedModule) or is_compiled_in_place(module)


def is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Tell whether ``module.compile()`` was called: then its hooks are compiled too."""
    return module._compiled_call_impl is not None


def around_compiled(
    module: torch.nn.Module, before: Callable[[], None], after: Callable[[], None]
) -> None:
    """Call these around the compiled code of a module that was compiled in place."""
    compiled = module._compiled_call_impl
    assert compiled is not None

    def call(*args: Any, **kwargs: Any) -> Any:
        before()
        try:
            return compiled(*args, **kwargs)
        finally:
            after()

    module._compiled_call_impl = call


def _nothing() -> None:
    pass
