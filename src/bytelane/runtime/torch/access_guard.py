"""The access guard: using a parameter or gradient that is not up to date first settles it.

Between backward and the end of the next forward, parameters and gradients may be out of date.
Modules have hooks of their own; the guard, a torch function mode, catches every other use:
``p.grad`` for clipping, ``p.data``, a weight used functionally in another module, an alias that
shares its memory, ``torch.save``, ``deepcopy``. It sees torch functions that Python calls in this
thread. It does not see parameters handed to C++ or to another thread.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from bytelane.foreign.torch import (
    function_modes,
    inside_transformed,
    is_default_device,
    is_transformed,
    never_compile_alone,
    pop_function_mode,
    push_function_mode,
    top_function_mode,
)

Settle = Callable[[set[int]], None]
Missing = Callable[[set[int]], set[int]]


class AccessGuard:
    """One session's tensors that are not up to date, found by the memory they live in."""

    def __init__(self, settle: Settle, missing: Missing) -> None:
        # Weak: the guard must not keep a model alive that its user has dropped.
        self._settle = weakref.WeakMethod(settle)
        self._missing = weakref.WeakMethod(missing)
        self._unsorted: dict[int, Sequence[torch.Tensor]] = {}
        self._by_memory: dict[int, set[int]] = defaultdict(set)
        self._memory_of: dict[int, list[int]] = {}
        self._paused = False
        self._mode_is_away = False
        self.incomplete = False
        """Whether tensors that are not watched may be out of date: ``missing`` finds them."""
        _mode.add(self)

    def watch(self, number: int, tensors: Sequence[torch.Tensor]) -> None:
        """From now on call ``settle({number})`` before one of these is used."""
        self._unsorted[number] = tensors  # many are up to date again before they are used

    def watch_too(self, number: int, tensors: Sequence[torch.Tensor]) -> None:
        """Watch more tensors under a number that is watched already."""
        if number in self._unsorted:
            self._unsorted[number] = (*self._unsorted[number], *tensors)
            return
        for place in map(memory_of, tensors):
            self._memory_of[number].append(place)
            self._by_memory[place].add(number)

    def _sort(self) -> None:
        for number, tensors in self._unsorted.items():
            places = [memory_of(tensor) for tensor in tensors]
            self._memory_of[number] = places
            for place in places:
                self._by_memory[place].add(number)
        self._unsorted.clear()

    def forget(self, number: int) -> None:
        """Stop watching a number whose tensors are up to date again."""
        if self._unsorted.pop(number, None) is not None:
            return
        for place in set(self._memory_of.pop(number)):
            self._by_memory[place].discard(number)
            if not self._by_memory[place]:
                del self._by_memory[place]

    def pause(self) -> None:
        """Ignore all uses of tensors until ``resume``."""
        self._paused = True
        # An optimizer's step uses every gradient several times, and each use costs a call.
        self._mode_is_away = self._mode_is_away or _mode.go_away()

    def resume(self) -> None:
        """Settle tensors before their use again."""
        self._paused = False
        if self._mode_is_away:
            self._mode_is_away = False
            self.start_watching()

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Ignore uses of tensors within this block."""
        was_paused = self._paused
        self.pause()
        try:
            yield
        finally:
            if not was_paused:
                self.resume()

    @property
    def is_looking(self) -> bool:
        """Tell whether a tensor may be out of date, and the guard is not paused."""
        if self._paused:
            return False
        return bool(self._by_memory or self._unsorted) or self.incomplete

    def look(self, values: Iterable[Any]) -> None:
        """Settle the tensors among the arguments of a torch function that are not up to date."""
        places = _places(values)
        seen = set[int]()
        if self.incomplete and (missing := self._missing()) is not None:
            seen |= missing(set(places))
        if self._unsorted:
            self._sort()
        for place in places:
            if place in self._by_memory:
                seen |= self._by_memory[place]
        if seen and (settle := self._settle()) is not None:
            settle(seen)

    @staticmethod
    def start_watching() -> None:
        """Enter the mode in this thread, below all modes that a user has entered or will enter.

        Modes are a stack, and leaving a ``with`` block pops its top whatever that is: entered on
        top of a user's mode, ours would be popped in its place.
        """
        if not AccessGuard.is_watching():
            others = [pop_function_mode() for _ in function_modes()][::-1]
            # A default device's mode stays at the bottom: torch requires it there.
            base = [mode for mode in others[:1] if is_default_device(mode)]
            for mode in (*base, _mode, *others[len(base) :]):
                push_function_mode(mode)

    @staticmethod
    def is_watching() -> bool:
        """Tell whether the mode is entered in this thread."""
        return any(mode is _mode for mode in function_modes())


class _Mode(TorchFunctionMode):
    """Shows the arguments of every torch function to all access guards."""

    def __init__(self) -> None:
        super().__init__()
        # A tuple, since it is walked through at every call of a torch function.
        self._guards: tuple[weakref.ref[AccessGuard], ...] = ()

    def add(self, access_guard: "AccessGuard") -> None:
        """Show arguments to this guard too, for as long as it lives."""
        self._guards = (*self._guards, weakref.ref(access_guard, self._remove))

    def _remove(self, gone: "weakref.ref[AccessGuard]") -> None:
        self._guards = tuple(known for known in self._guards if known is not gone)

    def go_away(self) -> bool:
        """Leave the stack of modes, if this is its top and no access guard looks."""
        if top_function_mode() is not self:
            return False
        if any(access_guard.is_looking for known in self._guards if (access_guard := known())):
            return False
        pop_function_mode()
        return True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_compiling():  # a hook before compiled code settles its tensors
            return func(*args, **(kwargs or {}))
        for known in self._guards:
            access_guard = known()
            if access_guard is not None and access_guard.is_looking:
                access_guard.look((*args, *kwargs.values()) if kwargs else args)
        return func(*args, **kwargs) if kwargs else func(*args)


_mode = _Mode()
# To be compiled as part of its callers, but never by itself.
never_compile_alone(_Mode.__torch_function__)


def memory_of(tensor: torch.Tensor) -> int:
    """Return where the memory begins that a tensor shares with its views."""
    # Making a storage object costs more than all the rest, and most tensors begin with theirs.
    return tensor.untyped_storage().data_ptr() if tensor.storage_offset() else tensor.data_ptr()


def _places(values: Iterable[Any]) -> list[int]:
    """Return where the memory of the tensors among these begins, and of those in lists."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            while is_transformed(value):
                value = inside_transformed(value)
            try:
                found.append(memory_of(value))
            except (NotImplementedError, RuntimeError, ValueError):
                continue  # a tensor without memory: sparse, meta, lazy
        elif isinstance(value, (list, tuple)):
            found += _places(value)
    return found
