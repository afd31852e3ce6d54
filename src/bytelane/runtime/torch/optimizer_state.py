"""An optimizer's ``state`` that makes late updates before anything reads it.

A late update changes momenta, too, and the first one makes them. ``optimizer.state`` is a plain
dictionary whose readers no torch function shows, so ``prepare`` puts this one in its place. Copies
and pickles of it are plain again.
"""

import copy
import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch

_Plain = defaultdict[Any, Any]


class OptimizerState(_Plain):
    """A ``defaultdict(dict)`` that calls ``before_read``, a method, which it does not keep alive.

    Writing counts as reading: what is written must not be overtaken by an earlier update.
    """

    def __init__(self, items: Mapping[Any, Any], before_read: Callable[[], None]) -> None:
        super().__init__(dict)
        self._before_read = weakref.WeakMethod(before_read)
        super().update(items)

    def tensors_of(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        """Return momenta and the like of one parameter as they are now."""
        own = _Plain.get(self, parameter, {})
        return [value for value in own.values() if isinstance(value, torch.Tensor)]

    def __repr__(self) -> str:
        return repr(self._plain())

    def _plain(self) -> _Plain:
        return defaultdict(dict, self.items())

    copy = __copy__ = _plain  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Plain:
        return copy.deepcopy(self._plain(), memo)

    def __reduce__(self) -> Any:
        return self._plain().__reduce__()


def _guarded(name: str) -> Callable[..., Any]:
    plain: Callable[..., Any] = getattr(defaultdict, name)

    @functools.wraps(plain)
    def method(self: OptimizerState, *args: Any, **kwargs: Any) -> Any:
        if (before_read := self._before_read()) is not None:
            before_read()
        return plain(self, *args, **kwargs)

    return method


for _name in (
    *("__getitem__", "__contains__", "__len__", "__iter__", "__reversed__", "__eq__", "__ne__"),
    *("__setitem__", "__delitem__", "__or__", "__ror__", "__ior__"),
    *("get", "keys", "values", "items", "pop", "popitem", "setdefault", "update", "clear"),
):
    setattr(OptimizerState, _name, _guarded(_name))
