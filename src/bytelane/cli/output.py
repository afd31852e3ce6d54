"""Print JSON, tables and progress lines, for all verbs."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bytelane.terminal import one_line, show


def print_json(values: Any) -> None:
    """Print one JSON document, indented."""
    import msgspec

    document = msgspec.json.format(msgspec.json.encode(values)).decode()
    # JSON escapes the control characters of ASCII only; these occur only inside strings.
    show(re.sub("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]", _as_json, document))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns: the first to the left, the others to the right."""
    titles, rows = _cells(titles), [_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        first, *others = (
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        show("  ".join([first, *others]).rstrip())


@contextmanager
def progress_line(first: str) -> Iterator[Callable[[str], None]]:
    """Show progress on a terminal, in one line; yield the function that updates it."""
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(first) as status:
        # Text, or a name in brackets would be read as markup.
        yield lambda line: status.update(Text(one_line(line)))


def _as_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _cells(texts: Sequence[str]) -> list[str]:
    return [one_line(text) for text in texts]


def count(number: int, noun: str) -> str:
    """Print a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
