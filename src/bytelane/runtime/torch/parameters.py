"""The trained parameters of a model, by number and name, and the modules that use them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from bytelane.foreign.torch import in_functional_call, registered, without_torch_function
from bytelane.parameter_map import parameters_used_by, using_modules
from bytelane.runtime.torch.module_hooks import is_compiled
from bytelane.runtime.torch.sparse_gradients import sparse_tables


class TrainedParameters:
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
        tables = sparse_tables(model)
        self.tables = {
            number: p.shape[1] * p.element_size()
            for number, p in enumerate(self.parameters)
            if id(p) in tables
        }
        """Tensor that gets row-sparse gradients -> bytes of a row."""
        self.used_by = {
            name: tuple(sorted(self.numbers_of(parameters_used_by(module, _runs, is_compiled))))
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
        """Tell whether a parameter was frozen, unfrozen, cast, moved, replaced or added since.

        A tracer puts tensors of its own into the model for a while; they do not count.
        """
        if not _in_groups(optimizers) <= self._known:
            return True
        with without_torch_function():  # not a use for the access guard
            changed = _seen(self._everything) != self._was
            return changed or (not is_traced and self._holds_others())

    def _holds_others(self) -> bool:
        """Tell whether the model has other parameters than before; other modules do not count."""
        # Reading the modules' dictionaries takes microseconds, parameters() milliseconds.
        present = [[*map(id, place.values())] for place, _ in self._registered]
        if present == [ids for _, ids in self._registered]:
            return False
        if in_functional_call():
            return False
        self._registered = _registered(self._model)
        return {id(p) for p in self._model.parameters()} != {id(p) for p in self._everything}


def _seen(
    parameters: Iterable[torch.Tensor],
) -> list[tuple[bool, torch.dtype, torch.device, torch.Size]]:
    return [(p.requires_grad, p.dtype, p.device, p.shape) for p in parameters]


def _registered(model: torch.nn.Module) -> list[tuple[dict[str, Any], list[int]]]:
    """Return the dictionaries of all modules' parameters and modules, and their present ids."""
    places = [place for m in model.modules() for place in registered(m)]
    return [(place, [*map(id, place.values())]) for place in places]


def describe(model: torch.nn.Module) -> str:
    """Describe everything of a model that must be equal on all ranks."""
    return repr(
        [
            (name, tuple(p.shape), p.stride(), str(p.dtype), p.requires_grad)
            for name, p in model.named_parameters()
        ]
    )


def describe_optimizers(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Describe everything of the optimizers that must be equal on all ranks."""
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


def gated_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules that use parameters; one that is compiled uses all within."""
    return using_modules(model, _runs, is_compiled)


def _runs(module: torch.nn.Module) -> bool:
    """Tell whether a module has a forward; a mere container of modules or parameters has none."""
    return getattr(module.forward, "__func__", None) is not torch.nn.Module.forward


def parameters_of(owner: torch.nn.Module | torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all parameters of a model or an optimizer."""
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    return [p for group in owner.param_groups for p in group["params"]]


def _in_groups(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    return {id(p) for optimizer in optimizers for p in parameters_of(optimizer)}
