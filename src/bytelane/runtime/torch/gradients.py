"""Gradient hooks: notice a complete gradient, lend it to the transport, get back the mean.

The hooks are on the AccumulateGrad node, as in DDP: they run after all of the user's hooks on the
parameter, in whatever order those were registered. They run for every tensor of every backward
pass. A gradient is summed in place, in ``p.grad``; a stand-in represents one that no backward pass
here has reached.
"""

import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import torch

from bytelane.errors import NotSupported
from bytelane.foreign.torch import without_torch_function
from bytelane.runtime.sync import Synchroniser
from bytelane.runtime.torch.access_guard import AccessGuard
from bytelane.runtime.torch.deferred_step import DeferredSteps
from bytelane.runtime.torch.parameters import TrainedParameters
from bytelane.runtime.torch.profiler import Profiler
from bytelane.runtime.torch.sparse_gradients import SparseGradient, sparse_problem
from bytelane.runtime.torch.transport import in_memory_order


class Loan(NamedTuple):
    """A gradient that is being summed, in place unless it is sparse."""

    gradient: torch.Tensor | SparseGradient
    """``p.grad`` itself, or a stand-in if no backward pass here has reached the parameter."""
    before: torch.Tensor | None
    """The former ``p.grad``."""

    @property
    def is_stand_in(self) -> bool:
        return self.gradient is not self.before


class Gradients:
    """Contributions of a model's trained parameters to a round, and the means they get from it."""

    def __init__(
        self,
        parameters: TrainedParameters,
        guard: AccessGuard,
        profiler: Profiler,
        deferred: DeferredSteps,
    ) -> None:
        self.trained = parameters
        self._guard = guard
        self._profiler = profiler
        self._deferred = deferred
        self._loans: dict[int, Loan] = {}
        self._set_to_none: dict[int, bool] = {}  # the argument of a zero_grad() to be made later
        self._hooks: list[GradientHook] = []

    @property
    def names(self) -> tuple[str, ...]:
        return self.trained.names

    def hook(self, sync: Synchroniser, is_synchronising: Callable[[], bool]) -> None:
        """Hook every trained parameter where autograd adds up its gradient."""
        for hook in self._hooks:
            hook.remove()
        self._sync, self._is_synchronising = sync, is_synchronising
        self._hooks = [
            GradientHook(parameter, number, sync.tensors.in_flight, self)
            for number, parameter in enumerate(self.trained.parameters)
        ]

    def complete(self, tensor: int) -> None:
        """Run when autograd has accumulated a gradient."""
        # What follows hardly ever waits; it is counted as computing of the next gradient.
        self._profiler.lap("backward", self.trained.owners[tensor][0])
        if self._is_synchronising():
            self._sync.take(tensor)
        else:
            self._sync.accumulate(tensor)

    def land(self) -> None:
        """Finish what is in flight, before autograd adds to it."""
        self._sync.land()

    # --- exchange with the synchroniser --------------------------------------------------------

    def lend(self, tensor: int, used: bool) -> torch.Tensor | SparseGradient:
        """Return ``p.grad``, or a stand-in if no backward pass here has reached the parameter."""
        parameter = self.trained.parameters[tensor]
        if tensor in self.trained.tables:
            own = self._usable(tensor) if used or parameter.grad is not None else None
            table = SparseGradient(own, parameter)
            self._loans[tensor] = Loan(table, parameter.grad)
            self._guard.watch(tensor, (parameter,))  # a sparse gradient has no memory of its own
            return table
        gradient = self._usable(tensor) if used else _stand_in(parameter)
        self._loans[tensor] = Loan(gradient, gradient if used else parameter.grad)
        self._guard.watch(tensor, (parameter, gradient))
        return gradient

    def lend_nothing(self, tensor: int) -> torch.Tensor | SparseGradient:
        """Return zeros."""
        if tensor in self.trained.tables:
            return SparseGradient(None, self.trained.parameters[tensor])
        return torch.zeros_like(self.trained.parameters[tensor])

    def give_back(self, tensor: int, used: bool) -> None:
        """Let ``p.grad`` be the mean over the ranks; unchanged if no rank has used the tensor."""
        loan, parameter = self._loans.pop(tensor), self.trained.parameters[tensor]
        # Without the access guard: calling it would cost microseconds per use.
        with without_torch_function():
            self._guard.forget(tensor)
            parameter.grad = loan.before
            if isinstance(loan.gradient, SparseGradient):
                if used:
                    parameter.grad = loan.gradient.mean()
            elif loan.is_stand_in and used:
                if loan.before is None:
                    parameter.grad = loan.gradient
                else:
                    loan.before.copy_(loan.gradient)

    def update(self, tensors: Sequence[int], used: Callable[[int], bool]) -> None:
        """Make the steps that were deferred for these parameters."""
        self._profiler.start("update", self.trained.owners[tensors[0]][0])
        for tensor in tensors:
            self.give_back(tensor, used(tensor))
        self._deferred.step(tensors, self.trained.parameters)
        self._profiler.stop()

    def forget(self, tensor: int) -> None:
        """Do what the user's ``zero_grad()`` would have done had the sum come in time."""
        parameter = self.trained.parameters[tensor]
        if self._set_to_none.pop(tensor):
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()

    # --- zero_grad() and step() of the user's loop ---------------------------------------------

    def forget_later(self, tensor: int, set_to_none: bool) -> None:
        """Hide a gradient that is still under way; it is forgotten when it has arrived."""
        self.trained.parameters[tensor].grad = None
        self._set_to_none[tensor] = set_to_none

    def owe(self, tensor: int, which: int) -> None:
        """Hide a gradient until an optimizer is stepped with it."""
        parameter = self.trained.parameters[tensor]
        parameter.grad = None
        self._guard.watch_too(tensor, self._deferred.owe(tensor, which, parameter))

    def _usable(self, tensor: int) -> torch.Tensor:
        parameter, name = self.trained.parameters[tensor], self.trained.names[tensor]
        gradient = parameter.grad
        if gradient is None:
            raise NotSupported(f"a hook has taken the gradient of {name} away before it was sent")
        is_table = tensor in self.trained.tables
        if problem := sparse_problem(gradient, name, is_table=is_table):
            raise NotSupported(problem)
        if gradient.dtype != self.trained.dtypes[tensor]:
            raise NotSupported(
                f"{name} has become {gradient.dtype} since prepare(); change dtypes before it"
            )
        if is_table:
            return gradient.detach()
        has_gaps = not gradient.is_contiguous() and in_memory_order(gradient) is None
        if gradient.requires_grad or has_gaps:
            parameter.grad = gradient = gradient.detach().clone(memory_format=torch.preserve_format)
        return gradient


def _stand_in(parameter: torch.Tensor) -> torch.Tensor:
    """Return the contribution of a rank that has not used a parameter, while others may have."""
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.detach().clone()


class GradientHook:
    """The two hooks of one parameter."""

    def __init__(
        self, parameter: torch.Tensor, number: int, in_flight: Set[int], gradients: Gradients
    ) -> None:
        with torch.enable_grad():
            function = parameter.view_as(parameter).grad_fn
        assert function is not None
        # The node lives as long as it is referenced, and vanishes with our hooks otherwise.
        self._node = function.next_functions[0][0]
        assert self._node is not None
        # Weak: a parameter keeps its hooks where the garbage collector does not look.
        weak = weakref.ref(gradients)

        def before(*_: Any) -> None:
            if number in in_flight and (gradients := weak()) is not None:
                gradients.land()

        def after(*_: Any) -> None:
            if (gradients := weak()) is not None:
                gradients.complete(number)

        self._handles = (self._node.register_prehook(before), self._node.register_hook(after))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
