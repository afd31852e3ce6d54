"""Hear of gradients: before one is added to ``p.grad``, and when it is there.

The hooks sit on the node that accumulates the gradient, as in DDP: they run after all of the user's
on the parameter, whoever came first. They run for every tensor of every backward pass.
"""

import weakref
from collections.abc import Set
from typing import Any, Protocol

import torch


class Taker(Protocol):
    """Whoever wants the gradients."""

    def take_gradient(self, tensor: int) -> None:
        """Take one that is complete."""

    def land(self) -> None:
        """Bring down what is in flight, before anything is added to it."""


class GradientHook:
    """The two hooks of one parameter."""

    def __init__(
        self, parameter: torch.Tensor, number: int, in_flight: Set[int], taker: Taker
    ) -> None:
        with torch.enable_grad():
            function = parameter.view_as(parameter).grad_fn
        assert function is not None
        # The node lives as long as somebody holds it, and vanishes with our hooks otherwise.
        self._node = function.next_functions[0][0]
        assert self._node is not None
        # Weak: a parameter keeps its hooks where the garbage collector does not look.
        weak_taker = weakref.ref(taker)

        def before(*_: Any) -> None:
            if number in in_flight and (taker := weak_taker()) is not None:
                taker.land()

        def after(*_: Any) -> None:
            if (taker := weak_taker()) is not None:
                taker.take_gradient(number)

        self._handles = (self._node.register_prehook(before), self._node.register_hook(after))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
