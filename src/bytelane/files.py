"""Read files that users name: regular ones only, and none that are too large.

Reading a pipe, a terminal or ``/dev/zero`` would block or never end, so the type of the file is
checked before anything is read.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bytelane.errors import InputError
from bytelane.units import format_bytes

# For job files, schedules, tables of sizes and scripts.
LARGEST_TEXT = 16 * 2**20

MOST_DOTS = 50
# The time that tomllib takes for a dotted key grows with the square of its parts, and more.
_DEEP_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    rf"{{{MOST_DOTS + 1}}}"
)

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def open_regular(path: Path, most_bytes: int) -> Iterator[IO[bytes]]:
    """Open a regular file of at most ``most_bytes``; refuse anything else."""
    try:
        # Opening a named pipe would block until a writer comes; regular files ignore the flag.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)})") from None
    try:
        _require_regular(path, os.fstat(descriptor), most_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    with open(descriptor, "rb") as file:
        try:
            yield file
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({_reason(error)})") from None


def _require_regular(path: Path, found: os.stat_result, most_bytes: int) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise InputError(f"{path}: is {_KINDS.get(kind, 'something else')}, not a regular file")
    if found.st_size > most_bytes:
        raise InputError(
            f"{path}: has {format_bytes(found.st_size)}; at most {format_bytes(most_bytes)} are "
            "read"
        )


def read_text(path: Path, most_bytes: int = LARGEST_TEXT) -> str:
    """Return the text of a file, without a byte order mark."""
    with open_regular(path, most_bytes) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:  # it grows, or has st_size 0, as files in /proc do
        raise InputError(f"{path}: has more than {format_bytes(most_bytes)}, too many to be read")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Read TOML, unless it is nested so deeply that reading it would take for ever or fail."""
    if _DEEP_KEY.search(text):
        raise InputError(f"not valid here: a key has more than {MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise InputError("not valid here: it is nested too deeply") from None
    except ValueError:
        raise InputError("not valid here: a number has too many digits") from None


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
