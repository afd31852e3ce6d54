"""What is trained: a model's parameters by number and name, and the modules that hold them."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils.stateless import _functional_call

from bytelane.runtime.torch.gate import is_compiled


class Trained:
    """The trained parameters of a model at one moment, numbered in the order of registration."""

    def __init__(self, model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._everything = [*model.parameters()]
        self._was = _seen(self._everything)
        self._model = model
        self._registered = _registered(model)
        self._known = {id(p) for p in self._everything} | _in_groups(optimizers)
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad and p.numel()]
        self.names = tuple(name for name, _ in named)
        self.parameters = tuple(p for _, p in named)
        self.dtypes = tuple(p.dtype for p in self.parameters)
        self.tensor_bytes = tuple(p.numel() * p.element_size() for p in self.parameters)
        self._number = {id(p): number for number, p in enumerate(self.parameters)}
        self.used_by = {
            module_name(name): tuple(sorted(self.numbers_of(parameters_used_by(module))))
            for name, module in gated_modules(model)
        }
        """Module -> the tensors that it uses."""
        self.owners = [
            tuple(name for name, tensors in self.used_by.items() if number in tensors)
            for number in range(len(named))
        ]
        """Tensor -> the modules that use it; tied ones have several."""

    def __len__(self) -> int:
        return len(self.parameters)

    def number_of(self, parameter: torch.Tensor) -> int | None:
        """Return the number of a parameter, or None if it is not trained."""
        return self._number.get(id(parameter))

    def numbers_of(self, parameters: Iterable[torch.Tensor]) -> set[int]:
        """Return the numbers of those among these that are trained."""
        return {self._number[id(p)] for p in parameters if id(p) in self._number}

    def has_changed(
        self, optimizers: Iterable[torch.optim.Optimizer], *, is_traced: bool = False
    ) -> bool:
        """Tell whether something was frozen, unfrozen, cast, moved, replaced or added since.

        A tracer puts tensors of its own into the model for the time being; they do not count.
        """
        if not _in_groups(optimizers) <= self._known:
            return True
        with torch._C.DisableTorchFunction():  # nobody has to be told of this look
            changed = _seen(self._everything) != self._was
            return changed or (not is_traced and self._holds_others())

    def _holds_others(self) -> bool:
        """Tell whether the model has other parameters than before; modules may well be others."""
        # Looking into all modules costs microseconds, asking them for parameters milliseconds.
        registered = [[*map(id, place.values())] for place, _ in self._registered]
        if registered == [ids for _, ids in self._registered]:
            return False
        if _is_called_functionally():
            return False
        self._registered = _registered(self._model)
        return {id(p) for p in self._model.parameters()} != {id(p) for p in self._everything}


def _is_called_functionally() -> bool:
    """Tell whether ``functional_call`` has put other tensors into the model for the time being."""
    frame = sys._getframe()
    while frame.f_code is not _functional_call.__code__:
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True


def _seen(
    parameters: Iterable[torch.Tensor],
) -> list[tuple[bool, torch.dtype, torch.device, torch.Size]]:
    return [(p.requires_grad, p.dtype, p.device, p.shape) for p in parameters]


def _registered(model: torch.nn.Module) -> list[tuple[dict[str, Any], list[int]]]:
    """Return where modules keep their parameters and modules, and what is there now."""
    places = [place for m in model.modules() for place in (m._parameters, m._modules)]
    return [(place, [*map(id, place.values())]) for place in places]


def describe(model: torch.nn.Module) -> str:
    """Say everything of a model that all ranks must have in common."""
    return repr(
        [
            (name, tuple(p.shape), p.stride(), str(p.dtype), p.requires_grad)
            for name, p in model.named_parameters()
        ]
    )


def describe_optimizers(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Say everything of the optimizers that all ranks must have in common."""
    names = {id(p): name for name, p in model.named_parameters()}
    return repr(
        [
            (
                type(optimizer).__name__,
                [_describe_group(group, names) for group in optimizer.param_groups],
            )
            for optimizer in optimizers
        ]
    )


def _describe_group(group: dict[str, Any], names: dict[int, str]) -> Any:
    own = [names.get(id(p), "") for p in group["params"]]
    return own, sorted(
        (key, float(value) if isinstance(value, torch.Tensor) else value)
        for key, value in group.items()
        if isinstance(value, (bool, int, float, str, tuple))
        or (isinstance(value, torch.Tensor) and value.numel() == 1)
    )


def module_name(name: str) -> str:
    """Name the root module too."""
    return name or "(model)"


def gated_modules(module: torch.nn.Module, name: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Return the modules that use parameters of their own; one that is compiled uses all within."""
    if _runs(module) and next(parameters_used_by(module), None) is not None:
        yield name, module
    if not is_compiled(module):
        for child_name, child in module.named_children():
            yield from gated_modules(child, f"{name}.{child_name}" if name else child_name)


def parameters_used_by(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """Return what is behind a module's gate: its own, and those of lists and dicts that it holds.

    What is compiled is entered once, for all that is within.
    """
    yield from module.parameters(recurse=is_compiled(module))
    if not is_compiled(module):
        for child in module.children():
            if not _runs(child):
                yield from parameters_used_by(child)


def _runs(module: torch.nn.Module) -> bool:
    """Tell whether a module has a forward; one that only holds others or parameters has none."""
    return getattr(module.forward, "__func__", None) is not torch.nn.Module.forward


def parameters_of(owner: torch.nn.Module | torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all parameters of a model or an optimizer."""
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    return [p for group in owner.param_groups for p in group["params"]]


def _in_groups(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    return {id(p) for optimizer in optimizers for p in parameters_of(optimizer)}
