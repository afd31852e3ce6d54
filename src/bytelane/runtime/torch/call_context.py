"""Snapshot and restore torch's context (autocast, modes, grad mode...) for deferred updates.

A deferred update runs inside the user's *next* forward pass. There, autocast may be on, a dispatch
mode may count operations, ``torch.jit.trace`` or a ``torch.func`` transform may record them. The
update must equal the one that ``step()`` would have made, and leave no mark in any of these. So
``step()`` takes a snapshot of its surroundings, and the update runs in those::

    step()            snapshot = CallContext.now()
    the next forward  with snapshot.entered(): the update

Torch keeps almost all of it in two sets of dispatch keys of the thread: autocast for every device,
inference mode, functorch, the tracer, Python's dispatch modes. Keys that only a mode, a trace or a
transform puts there cannot be entered later; ``is_observed`` tells, and then ``step()`` waits.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch

from bytelane.foreign.torch import (
    ALL_FUNCTIONS_DISABLED,
    DeviceMode,
    excluded_keys,
    forced_keys,
    function_modes,
    function_state,
    included_keys,
    keys_from_number,
    memory_filling,
    mkldnn,
    pop_function_mode,
    push_function_mode,
    set_function_state,
    set_grad_enabled,
    set_trace_state,
    trace_state,
    without_dispatch_modes,
    without_transforms,
)

_AUTOCAST_DEVICES = ("cpu", "cuda")


class _Keys(NamedTuple):
    """The dispatch keys that a thread adds to those of every tensor, and those it leaves out."""

    included: int
    excluded: int

    @classmethod
    def now(cls) -> "_Keys":
        return cls(included_keys().raw_repr(), excluded_keys().raw_repr())

    def forced(self) -> AbstractContextManager[None]:
        """Return a context manager in which the thread has these keys."""
        return forced_keys(keys_from_number(self.included), keys_from_number(self.excluded))


class _Thread(NamedTuple):
    """Torch's thread-local settings, which every operation obeys."""

    keys: _Keys
    inference: bool
    gradients: bool
    autocast_dtypes: tuple[torch.dtype, ...]
    autocast_caches: bool
    function_state: Any
    """Whether torch functions of subclasses and of modes are called at all."""
    function_modes: tuple[Any, ...]
    """From the bottom of the stack; only those that set a default device."""

    @classmethod
    def now(cls) -> "_Thread":
        return cls(
            _Keys.now(),
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            tuple(map(torch.get_autocast_dtype, _AUTOCAST_DEVICES)),
            torch.is_autocast_cache_enabled(),
            function_state(),
            tuple(mode for mode in function_modes() if isinstance(mode, DeviceMode)),
        )


class _Process(NamedTuple):
    """Settings of the whole process on which an optimizer's arithmetic depends."""

    default_dtype: torch.dtype
    deterministic: int
    fills_memory: bool
    threads: int
    mkldnn: bool

    @classmethod
    def now(cls) -> "_Process":
        return cls(*(read() for read, _ in _SETTINGS))


# In the order of the fields: how each is read and set. Reading all takes 1 us.
_SETTINGS: Sequence[tuple[Callable[[], Any], Callable[[Any], Any]]] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    memory_filling,
    (torch.get_num_threads, torch.set_num_threads),
    mkldnn,
)


class CallContext(NamedTuple):
    """A snapshot of everything around an operation that changes what it does."""

    thread: _Thread
    process: _Process

    @classmethod
    def now(cls) -> "CallContext":
        return cls(_Thread.now(), _Process.now())

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Restore this context for a while, whatever the present one is."""
        process = _Process.now()
        if process == self.process:
            with _entered(self.thread):
                yield
            return
        _set(process, self.process)
        try:
            with _entered(self.thread):
                yield
        finally:
            _set(self.process, process)


class plainly:  # noqa: N801  (a context manager that reads like a word)
    """Leave all modes, traces and transforms, autocast, inference mode and gradients for a while.

    A class and not a generator: it is entered for every operation that is sent.
    """

    __slots__ = ("_functions", "_gradients", "_rest")

    def __enter__(self) -> None:
        self._rest: AbstractContextManager[None] | None = None
        if _Keys.now() != _beginning().keys:
            self._rest = _entered(_beginning())
            self._rest.__enter__()
        self._functions = function_state()
        set_function_state(ALL_FUNCTIONS_DISABLED)
        self._gradients = torch.is_grad_enabled()
        set_grad_enabled(False)

    def __exit__(self, *error: Any) -> None:
        set_grad_enabled(self._gradients)
        set_function_state(self._functions)
        if self._rest is not None:
            self._rest.__exit__(*error)


def is_observed() -> bool:
    """Tell whether a mode, a trace or a transform sees the present operations."""
    extra_keys = _Keys.now().included & ~_beginning().keys.included
    return bool(extra_keys) or any(
        not isinstance(mode, DeviceMode) for mode in function_modes() if not _is_ours(mode)
    )


def _is_ours(mode: Any) -> bool:
    return type(mode).__module__.startswith("bytelane.")


@cache
def _beginning() -> _Thread:
    """Return the state in which every thread begins."""
    found: list[_Thread] = []
    beginner = threading.Thread(target=lambda: found.append(_Thread.now()))
    beginner.start()
    beginner.join()
    return found[0]


@contextmanager
def _entered(wanted: _Thread) -> Iterator[None]:
    if _Thread.now() == wanted and len(function_modes()) == len(wanted.function_modes):
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_no_trace())
        stack.enter_context(without_transforms())
        # Without its key a mode sees nothing, until some function pops and pushes it again.
        stack.enter_context(without_dispatch_modes())
        stack.enter_context(_functions(wanted))
        stack.enter_context(_autocast(wanted))
        # Both of these change the keys too, so they come before the keys.
        stack.enter_context(torch.inference_mode(wanted.inference))
        stack.enter_context(torch.set_grad_enabled(wanted.gradients))
        stack.enter_context(wanted.keys.forced())
        yield


@contextmanager
def _no_trace() -> Iterator[None]:
    """Pause ``torch.jit.trace``: its keys do not hold all of its state."""
    traced = trace_state()
    if traced is None:
        yield
        return
    set_trace_state(None)
    try:
        yield
    finally:
        set_trace_state(traced)


@contextmanager
def _functions(wanted: _Thread) -> Iterator[None]:
    """Have no torch function mode but those that set a default device."""
    modes, state = function_modes(), function_state()
    _replace_modes(wanted.function_modes)
    set_function_state(wanted.function_state)
    try:
        yield
    finally:
        set_function_state(state)
        _replace_modes(modes)


def _replace_modes(wanted: Sequence[Any]) -> None:
    for _ in function_modes():
        pop_function_mode()
    for mode in wanted:
        push_function_mode(mode)


@contextmanager
def _autocast(wanted: _Thread) -> Iterator[None]:
    """Set the dtypes that autocast casts to; whether it casts depends on keys."""
    now = _Thread.now()
    _set_autocast(wanted)
    try:
        yield
    finally:
        _set_autocast(now)


def _set_autocast(wanted: _Thread) -> None:
    for device, dtype in zip(_AUTOCAST_DEVICES, wanted.autocast_dtypes, strict=True):
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(wanted.autocast_caches)


def _set(now: _Process, wanted: _Process) -> None:
    for (_, write), is_so, to_be in zip(_SETTINGS, now, wanted, strict=True):
        if is_so != to_be:
            write(to_be)
