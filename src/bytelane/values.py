"""Refuse a value of the wrong type or beyond its limits; the message names it and what would do."""

import difflib
import math
import operator
from collections.abc import Iterable
from typing import Any

from bytelane.errors import InputError

# Longer than any quantity that anyone writes.
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
    """Return an int, or what stands for one, as NumPy's do; True and False do not."""
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
    """Return True or False; nothing else is taken for one of them."""
    if not isinstance(value, bool):
        raise InputError(f"{name} is {shown(value)}; it must be True or False")
    return value


def shown(value: Any) -> str:
    """Print a value as it would be written in a program, on one line and not at any length."""
    if isinstance(value, int) and abs(value) >= 10**MOST_CHARACTERS:
        return f"a number of about {round(math.log10(abs(value)))} digits"
    if isinstance(value, str) and len(value) > MOST_SHOWN:
        return f"{value[:MOST_CHARACTERS]!r}... ({len(value):,} characters)"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a stranger's class, or of a number inside that is too long
        text = f"a {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_CHARACTERS]}..."


def nearest(word: str, known: Iterable[str], most: int = 1) -> str:
    """Return "; did you mean ...?" with the names that a word is most like, or nothing."""
    near = difflib.get_close_matches(word[:MOST_CHARACTERS].lower(), known, n=most)
    return f"; did you mean {' or '.join(near)}?" if near else ""
