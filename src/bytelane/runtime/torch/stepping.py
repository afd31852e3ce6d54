"""Step the user's own optimizer for some parameters now and for the others later.

The groups hold only the wanted parameters meanwhile, so that a step costs what those cost, however
many others there are. Hyper-parameters and surroundings (autocast, modes, default dtype...) are
those of the moment at which the user called ``step()``: ``scheduler.step()`` follows at once and
must not reach back, and a late step runs in the middle of the next forward pass.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bytelane.runtime.torch.surroundings import Surroundings


class PartialStepper:
    """Late steps of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        # The class's step: a learning-rate scheduler has put a counter on the instance's. And not
        # torch's wrapper of it, which calls hooks: if a user has any, nothing is stepped late.
        step = type(optimizer).step
        self._step = getattr(step, "__wrapped__", step)
        self._hyper: list[dict[str, Any]] = []
        self._surroundings = Surroundings.now()
        self.active = False

    def remember(self) -> None:
        """Keep the hyper-parameters and surroundings of this moment for the late steps."""
        self._surroundings = Surroundings.now()
        self._hyper = [_hyper_of(group) for group in self._optimizer.param_groups]

    def step(self, parameters: Iterable[torch.Tensor]) -> None:
        """Step only these parameters, with what was remembered."""
        self.active = True
        try:
            with self._only(parameters), self._as_remembered(), self._surroundings.entered():
                self._step(self._optimizer)
        finally:
            self.active = False

    @contextmanager
    def _only(self, parameters: Iterable[torch.Tensor]) -> Iterator[None]:
        wanted = {id(p) for p in parameters}
        groups = self._optimizer.param_groups
        everything = [group["params"] for group in groups]
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) in wanted]
        try:
            yield
        finally:
            for group, own in zip(groups, everything, strict=True):
                group["params"] = own

    @contextmanager
    def _as_remembered(self) -> Iterator[None]:
        groups = self._optimizer.param_groups
        current = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        # A group added since has no memory and keeps what it has.
        for group, hyper in zip(groups, self._hyper, strict=False):
            group.update(hyper)
        try:
            yield
        finally:
            for group, hyper in zip(groups, current, strict=True):
                group.update(hyper)


def _hyper_of(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }
