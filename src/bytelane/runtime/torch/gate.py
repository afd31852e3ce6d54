"""Hooks that survive being copied.

A user may ``deepcopy`` or pickle a prepared model. The copy is a plain model: its hooks do nothing,
and it does not drag engine, sockets and locks along.
"""

from collections.abc import Callable
from typing import Any


class Gate:
    """A module hook that calls the runtime; any copy of it is open for ever."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self, *_: Any) -> None:
        self._call()

    def __deepcopy__(self, memo: object) -> "Gate":
        return Gate(_nothing)

    def __reduce__(self) -> tuple[type["Gate"], tuple[Callable[[], None]]]:
        return Gate, (_nothing,)


def _nothing() -> None:
    pass
