"""Split a stream of bytes into lines."""

import re

_END_OF_LINE = re.compile(rb"\r\n|\n|\r(?!$)")
LONGEST_BYTES = 1 << 20


class Lines:
    """Cuts at ends of lines; a carriage return is one too, so that progress bars are seen."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[str]:
        """Return the lines that are now complete."""
        # A return at the very end waits: a newline may follow that belongs to it.
        *lines, self._rest = _END_OF_LINE.split(self._rest + piece)
        if len(self._rest) > LONGEST_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace") for line in lines]

    def end(self) -> list[str]:
        """Return the last line if it has no end."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        return [rest.decode(errors="replace")] if rest else []
