"""Finding things by name, and saying what was meant when there is no such thing."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from bytelane.errors import InputError

_T = TypeVar("_T")


def find(what: str, name: str, known: Mapping[str, _T]) -> _T:
    """Return the entry of that name; refuse an unknown one with the nearest names."""
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"there is no {what} {name!r}{hint} (there are {', '.join(known)})")
    return known[name]
