"""Tag the processes of a lab by an environment variable, and read the tag of a process."""

import itertools
import os
from pathlib import Path
from typing import NamedTuple, Self

MARKER = "BYTELANE_LAB"

_serials = itertools.count()


class LabName(NamedTuple):
    """A lab, named by its owner process: pid and start time, since a pid may be reused."""

    owner: int
    started: int
    """When the owner began, in the kernel's ticks since boot."""
    world: str
    """The pid namespace of the owner."""
    serial: int
    """An owner may have several labs."""

    @classmethod
    def new(cls) -> Self:
        """Return a name for a lab of this process."""
        return cls(os.getpid(), _started(os.getpid()) or 0, _world(), next(_serials))

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the lab that a process belongs to; None if it has none or cannot be read."""
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return None  # ended, or another user's
        marks = (entry.decode(errors="replace").partition("=") for entry in entries)
        return next((cls._read(value) for name, _, value in marks if name == MARKER), None)

    @classmethod
    def _read(cls, text: str) -> Self | None:
        try:
            owner, started, world, serial = text.split("/")
            name = cls(int(owner), int(started), world, int(serial))
        except ValueError:
            return None
        return name if name.world == _world() else None

    def __str__(self) -> str:
        return f"{self.owner}/{self.started}/{self.world}/{self.serial}"

    @property
    def has_owner(self) -> bool:
        """Whether the owner process still lives."""
        return _started(self.owner) == self.started


def _world() -> str:
    return os.readlink("/proc/self/ns/pid")


def _started(pid: int) -> int | None:
    """Return the start time of a process; None if it does not exist."""
    try:
        # The name in parentheses may hold anything; the fields after it are numbers.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
