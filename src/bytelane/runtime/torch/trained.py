"""What is trained: a model's parameters by number and name, and the modules that hold them."""

from collections.abc import Iterable, Iterator

import torch

from bytelane.runtime.torch.gate import is_compiled


class Trained:
    """The trained parameters of a model at one moment, numbered in the order of registration."""

    def __init__(self, model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._everything = [*model.parameters()]
        self._was = _seen(self._everything)
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

    def has_changed(self, optimizers: Iterable[torch.optim.Optimizer]) -> bool:
        """Tell whether something was frozen, unfrozen, cast or added since."""
        if not _in_groups(optimizers) <= self._known:
            return True
        with torch._C.DisableTorchFunction():  # nobody has to be told of this look
            return _seen(self._everything) != self._was


def _seen(parameters: Iterable[torch.Tensor]) -> list[tuple[bool, torch.dtype]]:
    return [(p.requires_grad, p.dtype) for p in parameters]


def describe(model: torch.nn.Module) -> str:
    """Say everything of a model that all ranks must have in common."""
    return repr(
        [
            (name, tuple(p.shape), p.stride(), str(p.dtype), p.requires_grad)
            for name, p in model.named_parameters()
        ]
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
