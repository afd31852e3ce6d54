"""Validate types and ranges of arguments; the error names the value and what would be right."""

import difflib
import math
import operator
from collections.abc import Iterable
from typing import Any

from bytelane.errors import InputError

# Of a quantity as text, e.g. 4MiB.
MOST_CHARACTERS = 60
# Of a value that a message repeats: enough for a path.
MOST_SHOWN = 300


def require_whole(value: Any, name: str, least: int, most: int) -> int:
    """Return a whole number within limits."""
    number = as_whole(value, name)
    if not least <= number <= most:
        raise InputError(f"{name} is {shown(number)}; it must be {least:,} to {most:,}")
    return number


def as_whole(value: Any, name: str) -> int:
    """Return an int, also from a NumPy integer; refuse True and False."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise InputError(f"{name} is {shown(value)}; it must be a whole number")


def require_number(value: Any, name: str, least: float, most: float) -> float:
    """Return a number within limits."""
    number = as_number(value, name)
    if not least <= number <= most:
        raise InputError(f"{name} is {shown(value)}; it must be {least:g} to {most:g}")
    return number


def as_number(value: Any, name: str) -> float:
    """Return a number of any kind as a float."""
    try:
        if not isinstance(value, str | bytes | bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{name} is {shown(value)}; it must be a number")


def require_flag(value: Any, name: str) -> bool:
    """Return True or False; refuse anything else, such as 1."""
    if not isinstance(value, bool):
        raise InputError(f"{name} is {shown(value)}; it must be True or False")
    return value


def shown(value: Any) -> str:
    """Return the repr of a value, on one line and shortened."""
    if isinstance(value, int) and abs(value) >= 10**MOST_CHARACTERS:
        return f"a number of about {round(math.log10(abs(value)))} digits"
    if isinstance(value, str) and len(value) > MOST_SHOWN:
        return f"{value[:MOST_CHARACTERS]!r}... ({len(value):,} characters)"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # repr() of a user's class failed, or of a container with too long an int
        text = f"a {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_CHARACTERS]}..."


def nearest(word: str, known: Iterable[str], most: int = 1) -> str:
    """Return "; did you mean ...?" with the names that a word is most like, or nothing."""
    near = difflib.get_close_matches(word[:MOST_CHARACTERS].lower(), known, n=most)
    return f"; did you mean {' or '.join(near)}?" if near else ""
