"""See who looks: the first use of a tensor that is not up to date brings it up to date.

Between backward and the end of the next forward, parameters and gradients may be behind. Modules
have gates of their own; this catches everybody else: ``p.grad`` for clipping, ``p.data``, a weight
used functionally in another module, an alias that shares its memory, ``torch.save``, ``deepcopy``.
It sees what goes through Python in this thread. It does not see parameters handed to C++ or to
another thread.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.eval_frame import skip_code
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

Settle = Callable[[set[int]], None]
Missing = Callable[[set[int]], set[int]]


class Onlooker:
    """One session's tensors that are behind, found by the memory they live in."""

    def __init__(self, settle: Settle, missing: Missing) -> None:
        # Weak: whoever looks must not keep a model alive that its user has dropped.
        self._settle = weakref.WeakMethod(settle)
        self._missing = weakref.WeakMethod(missing)
        self._unsorted: dict[int, Sequence[torch.Tensor]] = {}
        self._by_memory: dict[int, set[int]] = defaultdict(set)
        self._memory_of: dict[int, list[int]] = {}
        self._paused = False
        self._mode_is_away = False
        self.incomplete = False
        """Whether tensors may be behind that are not watched: ``missing`` finds them by memory."""
        _mode.add(self)

    def watch(self, number: int, tensors: Sequence[torch.Tensor]) -> None:
        """From now on call ``settle({number})`` before anybody uses one of these."""
        self._unsorted[number] = tensors  # many are up to date again before anybody looks

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
        """It is up to date again."""
        if self._unsorted.pop(number, None) is not None:
            return
        for place in set(self._memory_of.pop(number)):
            self._by_memory[place].discard(number)
            if not self._by_memory[place]:
                del self._by_memory[place]

    def pause(self) -> None:
        """Do not react to anything before ``resume``."""
        self._paused = True
        # An optimizer's step looks at every gradient several times, and each look is a call.
        self._mode_is_away = self._mode_is_away or _mode.go_away()

    def resume(self) -> None:
        """React again."""
        self._paused = False
        if self._mode_is_away:
            self._mode_is_away = False
            self.start_watching()

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Do not react to what happens meanwhile."""
        was_paused = self._paused
        self.pause()
        try:
            yield
        finally:
            if not was_paused:
                self.resume()

    @property
    def is_looking(self) -> bool:
        """Tell whether anything may be behind, and nobody has asked to look away."""
        if self._paused:
            return False
        return bool(self._by_memory or self._unsorted) or self.incomplete

    def look(self, values: Iterable[Any]) -> None:
        """Settle what is behind among the arguments of a torch function."""
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
        """Enter the mode in this thread, below whatever a user has entered or will enter.

        Modes are a stack, and leaving a ``with`` block pops its top whatever that is: entered on
        top of a user's mode, ours would be popped in its place.
        """
        if not Onlooker.is_watching():
            others = [_pop_mode() for _ in _stack()][::-1]  # type: ignore[no-untyped-call]
            # A default device keeps the bottom: it insists on finding itself there.
            default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
            base = [mode for mode in others[:1] if mode is default]
            for mode in (*base, _mode, *others[len(base) :]):
                _push_mode(mode)  # type: ignore[no-untyped-call]

    @staticmethod
    def is_watching() -> bool:
        """Tell whether the mode is entered in this thread."""
        return any(mode is _mode for mode in _stack())


class _Mode(TorchFunctionMode):
    """Shows the arguments of every torch function to all onlookers."""

    def __init__(self) -> None:
        super().__init__()
        # A tuple, since it is walked through at every call of a torch function.
        self._onlookers: tuple[weakref.ref[Onlooker], ...] = ()

    def add(self, onlooker: "Onlooker") -> None:
        """Show everything to this one too, for as long as it lives."""
        self._onlookers = (*self._onlookers, weakref.ref(onlooker, self._remove))

    def _remove(self, gone: "weakref.ref[Onlooker]") -> None:
        self._onlookers = tuple(known for known in self._onlookers if known is not gone)

    def go_away(self) -> bool:
        """Leave the stack of modes, if this is its top and no onlooker looks."""
        if _get_current_function_mode() is not self:  # type: ignore[no-untyped-call]
            return False
        if any(onlooker.is_looking for known in self._onlookers if (onlooker := known())):
            return False
        _pop_mode()  # type: ignore[no-untyped-call]
        return True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_compiling():  # compiled code is entered through a gate
            return func(*args, **(kwargs or {}))
        for known in self._onlookers:
            onlooker = known()
            if onlooker is not None and onlooker.is_looking:
                onlooker.look((*args, *kwargs.values()) if kwargs else args)
        return func(*args, **kwargs) if kwargs else func(*args)


_mode = _Mode()
# To be compiled as part of whatever calls torch functions, but never by itself.
skip_code(_Mode.__torch_function__.__code__)


def _stack() -> list[Any]:
    return list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def memory_of(tensor: torch.Tensor) -> int:
    """Return where the memory begins that a tensor shares with its views."""
    # Making a storage object costs more than all the rest, and most tensors begin with theirs.
    return tensor.untyped_storage().data_ptr() if tensor.storage_offset() else tensor.data_ptr()


def _places(values: Iterable[Any]) -> list[int]:
    """Return where the memory of the tensors among these begins, and of those in lists."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            while torch._C._functorch.is_functorch_wrapped_tensor(value):
                value = torch._C._functorch.get_unwrapped(value)
            try:
                found.append(memory_of(value))
            except (NotImplementedError, RuntimeError, ValueError):
                continue  # a tensor without memory: sparse, meta, lazy
        elif isinstance(value, (list, tuple)):
            found += _places(value)
    return found
