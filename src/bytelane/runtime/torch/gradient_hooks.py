"""Hear of gradients: before one is added to ``p.grad``, and when it is there.

The hooks sit on the node that accumulates the gradient, as in DDP: they run after all of the user's
on the parameter, whoever came first.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch

Hear = Callable[[int], None]


class GradientHook:
    """The two hooks of one parameter, which hear its number."""

    def __init__(self, parameter: torch.Tensor, number: int, before: Hear, after: Hear) -> None:
        with torch.enable_grad():
            function = parameter.view_as(parameter).grad_fn
        assert function is not None
        # The node lives as long as somebody holds it, and vanishes with our hooks otherwise.
        self._node = function.next_functions[0][0]
        assert self._node is not None
        self._handles = (
            self._node.register_prehook(_weakly(before, number)),
            self._node.register_hook(_weakly(after, number)),
        )

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _weakly(method: Hear, number: int) -> Callable[..., None]:
    # Weak: a parameter keeps its hooks where the garbage collector does not look.
    hear = weakref.WeakMethod(method)

    def call(*_: Any) -> None:
        method = hear()
        if method is not None:
            method(number)

    return call
