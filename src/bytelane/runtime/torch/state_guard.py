"""Guard an optimizer's ``state`` while updates are owed: they are made before it is read.

A late update changes momenta, too, and the first one makes them. ``optimizer.state`` is a plain
dictionary, whose reads call no torch function. So a guard takes its place for as long as updates
are owed, and never during a step: compiled and pickled code finds the dictionary itself.
"""

import copy
import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

_Plain = defaultdict[Any, Any]


class StateGuard(_Plain):
    """Stands for ``state``, and calls ``before_use`` first; copies are copies of the dictionary."""

    def __init__(self, state: _Plain, before_use: Callable[[], None]) -> None:
        super().__init__(dict)
        self._state = state
        self._before_use = before_use

    def __deepcopy__(self, memo: dict[int, Any]) -> _Plain:
        self._before_use()
        return copy.deepcopy(self._state, memo)

    def __reduce__(self) -> Any:
        self._before_use()
        return self._state.__reduce__()


def _guarded(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(defaultdict, name))
    def method(self: StateGuard, *args: Any, **kwargs: Any) -> Any:
        self._before_use()
        return getattr(self._state, name)(*args, **kwargs)

    return method


for _name in (
    *("__getitem__", "__contains__", "__len__", "__iter__", "__reversed__", "__eq__", "__ne__"),
    *("__setitem__", "__delitem__", "__or__", "__ror__", "__repr__", "__copy__", "copy"),
    *("get", "keys", "values", "items", "pop", "popitem", "setdefault", "update", "clear"),
):
    setattr(StateGuard, _name, _guarded(_name))
