"""The forward pass of a prepared model: every module waits for the weights that it uses."""

from collections.abc import Sequence
from typing import Protocol

import torch

from bytelane.runtime.sync import Synchroniser
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.access_guard import AccessGuard
from bytelane.runtime.torch.call_context import is_observed, plainly
from bytelane.runtime.torch.control import Control
from bytelane.runtime.torch.framework import OUTSIDE, TorchFramework
from bytelane.runtime.torch.profiler import Profiler
from bytelane.runtime.torch.uneven_inputs import UnevenInputs

# DDP's name for it: scripts that accumulate gradients switch this attribute of their model.
SYNC_FLAG = "require_backward_grad_sync"


class StartsOver(Protocol):
    """Makes the ranks agree on a model that has changed, and measures it again."""

    def __call__(self) -> None: ...


class ForwardPass:
    """Hooks before, within and after the model's own forward."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        sync: Synchroniser,
        framework: TorchFramework,
        guard: AccessGuard,
        profiler: Profiler,
        control: Control,
        start_over: StartsOver,
    ) -> None:
        self.is_running = False
        self.uneven: UnevenInputs | None = None
        """Within ``join``: which ranks still have data."""
        self._model = model
        self._optimizers = optimizers
        self._sync = sync
        self._framework = framework
        self._guard = guard
        self._profiler = profiler
        self._control = control
        self._start_over = start_over
        self._buffers_are_due = True

    @property
    def is_synchronising(self) -> bool:
        """False within ``no_sync``: gradients only accumulate here. Kept on the model itself."""
        return bool(getattr(self._model, SYNC_FLAG, True))

    @is_synchronising.setter
    def is_synchronising(self, wanted: bool) -> None:
        setattr(self._model, SYNC_FLAG, wanted)

    def enter_model(self) -> None:
        """Run before the root module's forward."""
        self._guard.resume()  # a step() that raised has left it paused
        self.is_running = True
        is_traced = is_observed()
        if is_traced:
            # A trace or transform of this forward must see one set of weights from its beginning.
            self._sync.settle_owed()
        if not torch.is_grad_enabled():
            return
        with self._sync.failures.told(), plainly():
            if self._framework.trained.has_changed(self._optimizers, is_traced=is_traced):
                self._start_over()
            if self.uneven is not None and self.is_synchronising:
                self.uneven.announce(self._sync.step, self._sync.number, self._buffers_are_due)
            if self._buffers_are_due:
                self.copy_buffers()
        # As in DDP: not after a forward pass within no_sync.
        self._buffers_are_due = self._framework.forward_ran = self.is_synchronising
        self._profiler.start("outside", OUTSIDE)

    def enter_module(self, module: str) -> None:
        """Run before a module's forward: settle the parameters that it uses."""
        owed = self._sync.tensors.owed
        if owed and (needed := owed.intersection(self._framework.trained.used_by[module])):
            self._profiler.stop()
            self._sync.settle(needed)
        if torch.is_grad_enabled():
            self._profiler.start("forward", module)
        else:
            self._profiler.stop()

    def leave_model(self) -> None:
        """Run after the root module's forward: settle modules that it has left out."""
        self.is_running = False
        self._profiler.stop()
        if self._sync.rounds.failure is None:  # else the failure has ended this forward
            self._sync.settle_owed()
        if torch.is_grad_enabled():
            self._profiler.start("backward", OUTSIDE)

    def copy_buffers(self) -> None:
        """Copy one rank's buffers to all before a training forward, as DDP does."""
        buffers = list(self._model.buffers())
        if buffers:
            source = 0 if self.uneven is None else self.uneven.authority
            with self._framework.undisturbed():
                agreement.copy_from(source, buffers, self._control)

    def shadow_the_others(self) -> None:
        """Take part in the others' rounds until no rank has data; then copy the last weights."""
        assert self.uneven is not None
        self._sync.land()
        self._sync.settle_owed()
        with self._framework.undisturbed():
            while (ahead := self.uneven.hear()) is not None:
                step, number, buffers_are_due = ahead
                if buffers_are_due:
                    self.copy_buffers()
                self._sync.shadow(step, number)
            everything = [*self._model.parameters(), *self._model.buffers()]
            where = torch.tensor([self._sync.step, self._sync.number])
            agreement.copy_from(self.uneven.authority, [*everything, where], self._control)
            self._sync.step, self._sync.number = where.tolist()
