"""Print text with terminal control characters escaped.

A name from a file, a model or a peer may hold escape sequences: they recolour, overwrite or retitle
a terminal, and some terminals answer them as if the user had typed. Everything that Bytelane prints
goes through :func:`show`.
"""

import contextlib
from typing import TextIO

_NEWLINE, _TAB = 0x0A, 0x09
_BIDIRECTIONAL = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # show text in another order
_LINE_BREAKS = (0x2028, 0x2029)
_SURROGATES = range(0xD800, 0xE000)  # bytes of a file name that are no text
# The control characters of ASCII and of Latin-1: 0x9b alone begins a sequence, too.
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


_IN_LINE = {
    code: _escape(code) for code in (*_CONTROLS, *_BIDIRECTIONAL, *_LINE_BREAKS, *_SURROGATES)
}
_IN_TEXT = {code: text for code, text in _IN_LINE.items() if code not in (_NEWLINE, _TAB)}


def printable(text: str) -> str:
    """Escape every terminal control character except line ends and tabs."""
    return text.translate(_IN_TEXT)


def one_line(text: str) -> str:
    """Escape line ends and tabs as well, for a name in a table or a sentence."""
    return text.translate(_IN_LINE)


def show(text: str = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a line, to the standard output unless another file is given."""
    print(f"{printable(text)}\n", end="", file=file, flush=flush)  # one write: others print too


def announce(text: str) -> None:
    """Print a line of Bytelane's while a script trains; a failed write does not stop training."""
    with contextlib.suppress(OSError, ValueError):  # a full disk, a reader that left; a closed file
        show(f"bytelane: {text}", flush=True)


def relay(text: str, *, file: TextIO | None = None) -> None:
    """Print the output of a user's program unchanged, with its colours."""
    print(text, end="", file=file, flush=True)
