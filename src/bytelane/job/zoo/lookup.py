"""Find models and accelerators by name; an unknown name is refused with the nearest ones."""

from collections.abc import Mapping
from typing import TypeVar

from bytelane.errors import InputError
from bytelane.values import nearest, shown

_T = TypeVar("_T")


def find(what: str, name: str, known: Mapping[str, _T]) -> _T:
    """Return the entry of that name; refuse an unknown one with the nearest names."""
    if name not in known:
        hint = nearest(name, known, most=3)
        raise InputError(f"there is no {what} {shown(name)}{hint} (there are {', '.join(known)})")
    return known[name]
