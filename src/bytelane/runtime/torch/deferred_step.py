"""Deferred steps: step the user's own optimizer for some parameters now, for the others later.

The groups hold only the wanted parameters meanwhile, so that a step costs what those cost, however
many others there are. Groups, state and context (autocast, modes, default dtype...) are those
of the moment at which the user called ``step()``: ``scheduler.step()`` follows at once, parameters
may be taken out of a group, and the late step runs in the middle of the next forward pass.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bytelane.runtime.torch.call_context import CallContext
from bytelane.runtime.torch.state_guard import StateGuard


class DeferredSteps:
    """The late steps of all optimizers of a model, and which of them a tensor waits for."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.by_optimizer = [DeferredStep(optimizer) for optimizer in optimizers]
        self._owing: dict[int, int] = {}

    def owe(self, tensor: int, which: int, parameter: torch.Tensor) -> list[torch.Tensor]:
        """Let an optimizer owe a tensor its update; return the state that this will change."""
        self._owing[tensor] = which
        return self.by_optimizer[which].state_of(parameter)

    def owed_by(self, which: int) -> set[int]:
        """Return the tensors that wait for this optimizer."""
        return {tensor for tensor, owing in self._owing.items() if owing == which}

    def step(self, tensors: Sequence[int], parameters: Sequence[torch.Tensor]) -> None:
        """Make the updates of these tensors; where that raises, all of them stay owed."""
        for which, deferred in enumerate(self.by_optimizer):
            own = [parameters[t] for t in tensors if self._owing[t] == which]
            if own:
                deferred.step(own)
        for tensor in tensors:
            del self._owing[tensor]
        for which, deferred in enumerate(self.by_optimizer):
            if which not in self._owing.values():
                deferred.release_state()

    def guard_states(self, settle: Callable[[], None]) -> None:
        """Call ``settle`` when the state of an optimizer is used that owes updates."""
        for which in set(self._owing.values()):
            self.by_optimizer[which].guard_state(settle)


class DeferredStep:
    """Late steps of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        # The class's step: a learning-rate scheduler has put a counter on the instance's. And not
        # torch's wrapper of it, which calls hooks: if a user has any, nothing is stepped late.
        step = type(optimizer).step
        self._step = getattr(step, "__wrapped__", step)
        self._groups: list[tuple[dict[str, Any], list[torch.Tensor]]] = []
        self._state: Any = None
        self._surroundings = CallContext.now()
        self._guard: StateGuard | None = None
        self.active = False

    def remember(self) -> None:
        """Keep groups, state and context of this moment for the late steps."""
        self._surroundings = CallContext.now()
        self._groups = [(_hyper_of(g), list(g["params"])) for g in self._optimizer.param_groups]
        self._state = self._optimizer.state

    def step(self, parameters: Iterable[torch.Tensor]) -> None:
        """Step only these parameters, with what was remembered."""
        self.active = True
        try:
            with self._as_remembered(parameters), self._surroundings.entered():
                self._step(self._optimizer)
        finally:
            self.active = False

    @contextmanager
    def _as_remembered(self, parameters: Iterable[torch.Tensor]) -> Iterator[None]:
        """Give the optimizer the remembered groups and state; the user may have changed both."""
        wanted = {id(p) for p in parameters}
        groups, state = self._optimizer.param_groups, self._optimizer.state
        self._optimizer.param_groups = [
            {**hyper, "params": [p for p in own if id(p) in wanted]} for hyper, own in self._groups
        ]
        self._optimizer.state = self._state
        try:
            yield
        finally:
            self._optimizer.param_groups, self._optimizer.state = groups, state

    # --- the optimizer's state -----------------------------------------------------------------

    def state_of(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        """Return momenta and the like of a parameter."""
        own = self._state.get(parameter, {})
        return [value for value in own.values() if isinstance(value, torch.Tensor)]

    def guard_state(self, settle: Callable[[], None]) -> None:
        """Call ``settle`` when the optimizer's state is used, until it is released."""
        if self._guard is None:
            weak = weakref.WeakMethod(settle)
            self._guard = StateGuard(self._state, lambda: _call(weak))
            self._optimizer.state = self._guard

    def release_state(self) -> None:
        """Give the optimizer its state back, unless the user has given it another one."""
        if self._guard is not None and self._optimizer.state is self._guard:
            self._optimizer.state = self._state
        self._guard = None


def _hyper_of(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }


def _call(weak: "weakref.WeakMethod[Callable[[], None]]") -> None:
    if (method := weak()) is not None:
        method()
