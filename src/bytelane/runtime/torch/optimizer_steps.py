"""Hooks around ``step()`` and ``zero_grad()``: gradients still in flight are handled later."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from bytelane.errors import NotSupported
from bytelane.foreign.torch import has_step_hooks
from bytelane.runtime.sync import State, Synchroniser
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.access_guard import AccessGuard
from bytelane.runtime.torch.call_context import is_observed
from bytelane.runtime.torch.control import Control
from bytelane.runtime.torch.deferred_step import DeferredSteps
from bytelane.runtime.torch.framework import OUTSIDE
from bytelane.runtime.torch.gradients import Gradients
from bytelane.runtime.torch.parameters import parameters_of
from bytelane.runtime.torch.profiler import Profiler
from bytelane.runtime.torch.separable_optimizers import is_separable


class OptimizerSteps:
    """Hooks before and after the steps of the optimizers of one model."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        sync: Synchroniser,
        gradients: Gradients,
        deferred: DeferredSteps,
        guard: AccessGuard,
        profiler: Profiler,
        control: Control,
        complete_round: Callable[[], None],
    ) -> None:
        self._optimizers = optimizers
        self._sync = sync
        self._gradients = gradients
        self._deferred = deferred
        self._guard = guard
        self._profiler = profiler
        self._control = control
        self._complete_round = complete_round

    def before_step(self, which: int) -> None:
        """Run before ``step()``: settle the tensors that have arrived; the others are owed."""
        self._profiler.stop("outside", OUTSIDE)
        self._guard.resume()  # a step() that raised has left it paused
        _require_guard()
        tensors = self._sync.tensors
        with self._guard.looking_away():
            own = self._gradients.trained.numbers_of(parameters_of(self._optimizers[which]))
            # A second step() with the same gradients, and gradients discarded since; and updates
            # that this optimizer owes, although the user may have changed its groups.
            discarded = {t for t in own if tensors.state(t) is State.DISCARDED}
            self._sync.settle(self._deferred.owed_by(which) | own & tensors.owed | discarded)
            self._complete_round()
            if self._sync.rounds.plan.barrier or self._must_wait(which):
                self._sync.settle(own & tensors.in_flight)
            else:
                self._defer(which, own & tensors.in_flight)
        self._guard.pause()
        self._profiler.start("update", OUTSIDE)

    def _defer(self, which: int, tensors: set[int]) -> None:
        self._deferred.by_optimizer[which].remember()
        for tensor in self._sync.defer(tensors):
            self._gradients.owe(tensor, which)

    def _must_wait(self, which: int) -> bool:
        optimizer = self._optimizers[which]
        # Late steps would run the user's hooks several times.
        return has_step_hooks(optimizer) or not is_separable(optimizer) or is_observed()

    def synchronised(self, closure: Callable[[], Any], which: int) -> Callable[[], Any]:
        """Wrap a closure so that the optimizer that calls it finds all tensors up to date."""

        def call() -> Any:
            self._guard.resume()
            loss = closure()
            self._complete_round()
            self._sync.flush()
            self._guard.pause()
            if is_separable(self._optimizers[which]) or loss is None:
                return loss
            # An optimizer that couples parameters may decide by the loss, the same on all ranks.
            return agreement.mean(loss, self._control)

        self._sync.flush()
        return call

    def after_step(self, settle_owed: Callable[[], None]) -> bool:
        """Run after ``step()``, although updates may be owed; tell whether it ends an iteration."""
        self._guard.resume()
        self._profiler.stop()
        self._deferred.guard_states(settle_owed)
        is_over = self._sync.count_step()
        if is_over:
            self._profiler.begin_iteration()
        self._profiler.start("outside", OUTSIDE)
        return is_over

    def before_zero_grad(self, parameters: Iterable[torch.Tensor], set_to_none: bool) -> None:
        """Discard these gradients; those still owed are kept, for the update only."""
        tensors = self._gradients.trained.numbers_of(parameters)
        under_way = self._sync.discard(tensors)
        with self._guard.looking_away():
            for tensor in under_way:  # a gradient in flight must not change
                self._gradients.forget_later(tensor, set_to_none)


def _require_guard() -> None:
    """Refuse to go on if the access guard's mode is not entered in this thread."""
    if not AccessGuard.is_watching():
        raise NotSupported(
            "prepare() was called in another thread than this one, or other code has removed the "
            "access guard of parameters; call prepare() in the thread that trains"
        )
