"""Find the model and optimizer that a script trains, by hooks on all modules and optimizers."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bytelane.errors import BytelaneError, NotSupported
from bytelane.foreign.torch import in_backward
from bytelane.measure.observation_points import ObservationPoints, Seen, find_gates, refuse_wrapped


class Discovered(NamedTuple):
    """The model and optimizer that one iteration has shown."""

    model: torch.nn.Module
    gates: ObservationPoints
    last: torch.optim.Optimizer
    """The optimizer whose step ends an iteration."""


class Stop(BaseException):
    """Ends the script from within; its own ``except Exception`` does not catch it."""

    def __init__(self, reason: BytelaneError | None = None) -> None:
        super().__init__()
        self.reason = reason


class Finder:
    """Watches until the first forward pass after a step, then removes its hooks."""

    def __init__(self, found: Callable[[Discovered], None]) -> None:
        self._found = found
        self._hooks = contextlib.ExitStack()
        self._roots: list[torch.nn.Module] = []
        self._seen = Seen(set(), set())
        self._depth = 0
        self._training = False
        self._stepping = False
        self._optimizers: list[torch.optim.Optimizer] = []

    def __enter__(self) -> "Finder":
        for handle in (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def _enter(self, module: torch.nn.Module, arguments: Any) -> None:
        if self._depth == 0:
            # Skip evaluation, and a forward pass that backward repeats.
            self._training = torch.is_grad_enabled() and not in_backward()
            if self._training and next(module.parameters(), None) is not None:
                try:
                    self._enter_root(module)
                except BytelaneError as error:
                    raise Stop(error) from None
        if self._training:
            self._seen.called.add(module)
        self._depth += 1

    def _leave(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        self._depth -= 1

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping = True
        self._seen.trained.update(p for p in _parameters(optimizer) if p.grad is not None)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping = False
        self._optimizers.append(optimizer)

    def _enter_root(self, module: torch.nn.Module) -> None:
        refuse_wrapped(module)
        if self._stepping:
            raise NotSupported("step(closure) cannot be profiled yet; call backward() and step()")
        if not self._optimizers:
            if module not in self._roots:
                self._roots.append(module)
            return
        stepped = {p for optimizer in self._optimizers for p in _parameters(optimizer)}
        roots = [one for one in self._roots if not stepped.isdisjoint(one.parameters())]
        self._hooks.close()
        if not roots:
            raise NotSupported(
                "the optimizer steps parameters of no module that was called in training"
            )
        model = roots[0] if len(roots) == 1 else _together(roots)
        gates = find_gates(model, self._seen, roots)
        self._found(Discovered(model, gates, self._optimizers[-1]))


def _together(roots: Sequence[torch.nn.Module]) -> torch.nn.Module:
    """Combine several models as parts of one, without changing them."""
    parts: dict[str, torch.nn.Module] = {}
    for root in roots:
        name = type(root).__name__
        parts[name if name not in parts else f"{name}{len(parts) + 1}"] = root
    return torch.nn.ModuleDict(parts)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
