"""Printing that several verbs share."""

from collections.abc import Sequence
from typing import Any


def print_json(values: Any) -> None:
    """Print one JSON document, indented."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(values)).decode())


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        first, *others = (
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())


def count(number: int, noun: str) -> str:
    """Print a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
