"""Step the user's own optimizer for some parameters now and for the others later.

The groups hold only the wanted parameters meanwhile, so that a step costs what those cost, however
many others there are. Groups, state and surroundings (autocast, modes, default dtype...) are those
of the moment at which the user called ``step()``: ``scheduler.step()`` follows at once, parameters
may be taken out of a group, and the late step runs in the middle of the next forward pass.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bytelane.runtime.torch.optimizer_state import StateGuard
from bytelane.runtime.torch.surroundings import Surroundings


class PartialStepper:
    """Late steps of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        # The class's step: a learning-rate scheduler has put a counter on the instance's. And not
        # torch's wrapper of it, which calls hooks: if a user has any, nothing is stepped late.
        step = type(optimizer).step
        self._step = getattr(step, "__wrapped__", step)
        self._groups: list[tuple[dict[str, Any], list[torch.Tensor]]] = []
        self._state: Any = None
        self._surroundings = Surroundings.now()
        self._guard: StateGuard | None = None
        self.active = False

    def remember(self) -> None:
        """Keep groups, state and surroundings of this moment for the late steps."""
        self._surroundings = Surroundings.now()
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
        """Give the optimizer the groups and the state of then; the user may have changed both."""
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
        """Have this method called when the optimizer's state is used, until it is released."""
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
