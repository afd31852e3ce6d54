"""Look up private names of other libraries, and report those that an installed version lacks."""

import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

OLDEST_TORCH = (2, 9)
"""The first version that has all names, public ones too."""
TESTED_TORCH = (2, 13)
"""The version on which the tests run."""

_ABSENT = object()


class Name(NamedTuple):
    """A private name of another library."""

    path: str
    """From the library's root, or from an object in ``samples``."""
    purpose: str
    """What Bytelane needs it for; with a fallback, what happens without it."""
    has_fallback: bool = False


def is_too_old(torch_version: str) -> bool:
    """Tell whether a version of torch lacks names that are looked up on import."""
    return tuple(map(int, re.findall(r"\d+", torch_version)[:2])) < OLDEST_TORCH


def usable_torch() -> str:
    """Name the versions of torch that are supported."""
    oldest, tested = (".".join(map(str, version)) for version in (OLDEST_TORCH, TESTED_TORCH))
    return f"torch {oldest} to {tested}"


def find(path: str, samples: Mapping[str, Any] | None = None) -> Any:
    """Return the object at a dotted path, importing modules on the way; None if it is missing."""
    found = _look_up(path, samples)
    return None if found is _ABSENT else found


def _look_up(path: str, samples: Mapping[str, Any] | None) -> Any:
    first, *rest = path.split(".")
    known = first
    found = (samples or {}).get(first)
    try:
        if found is None:
            found = importlib.import_module(first)
        for name in rest:
            known = f"{known}.{name}"
            # A package may have deleted the name of a module that it imports.
            found = getattr(found, name) if hasattr(found, name) else importlib.import_module(known)
    except ImportError:
        return _ABSENT
    return found


def missing(
    library: str, names: Iterable[Name], tested: str, samples: Mapping[str, Any] | None = None
) -> list[str]:
    """Return a sentence for each name that a version lacks and that has no fallback."""
    return [
        f"{library} has no {name.path}, which bytelane needs to {name.purpose}; use {tested}"
        for name in names
        if not name.has_fallback and _look_up(name.path, samples) is _ABSENT
    ]


def replaced(
    library: str, names: Iterable[Name], samples: Mapping[str, Any] | None = None
) -> list[str]:
    """Return a sentence for each name that a version lacks and that has a fallback."""
    return [
        f"{library} has no {name.path}: {name.purpose}"
        for name in names
        if name.has_fallback and _look_up(name.path, samples) is _ABSENT
    ]
