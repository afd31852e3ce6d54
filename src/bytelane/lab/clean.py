"""Find and kill processes of labs whose owner has ended (``bytelane lab clean``).

There is little to find. A lab's namespaces end with its processes, and those end with its
supervisor. Left are processes that a killed supervisor could not take along: in mode pacing, a
command's own children; in any mode, a supervisor that was stopped (SIGSTOP) when its owner died.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from bytelane.lab.process_tag import LabName
from bytelane.lifetime import remove_abandoned

ENDING_S = 5.0


class Leftover(msgspec.Struct, frozen=True):
    """A process of a lab whose owner has ended."""

    pid: int
    owner_pid: int
    command: str


class Cleaning(msgspec.Struct, frozen=True):
    """Processes that were ended, labs in use, folders that were removed."""

    ended: tuple[Leftover, ...]
    living: tuple[int, ...]
    """Owners of labs that are in use; nothing of theirs is touched."""
    folders: tuple[str, ...] = ()
    """Temporary folders of commands that were killed, now removed."""


def clean() -> Cleaning:
    """End all processes of this user's labs whose owner is gone; remove temporary folders, too."""
    members = dict(lab_processes())
    lost = {pid: lab for pid, lab in members.items() if not lab.has_owner}
    ended = tuple(Leftover(pid, lab.owner, _command(pid)) for pid, lab in lost.items())
    _end(lost)
    living = tuple(sorted({lab.owner for lab in members.values() if lab.has_owner}))
    return Cleaning(ended, living, tuple(map(str, remove_abandoned())))


def end_lab(name: LabName) -> None:
    """End all processes of one lab."""
    _end({pid: lab for pid, lab in lab_processes() if lab == name})


def lab_processes() -> Iterator[tuple[int, LabName]]:
    """Yield every other process of this user that belongs to a lab."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if folder.name.isdigit() and folder.stat().st_uid == os.getuid():
                lab = LabName.of(int(folder.name))
                if lab and int(folder.name) != os.getpid():
                    yield int(folder.name), lab


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace").rstrip()


def _end(members: Mapping[int, LabName]) -> None:
    """Kill processes of labs, and wait until they are gone."""
    for pid, lab in members.items():
        with contextlib.suppress(ProcessLookupError):
            _kill(pid, lab)
    deadline = time.monotonic() + ENDING_S
    for pid in members:
        while LabName.of(pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def _kill(pid: int, lab: LabName) -> None:
    """Kill a process if it is still the one that was found, and not another with its number."""
    process = os.pidfd_open(pid)
    try:
        if LabName.of(pid) == lab:
            signal.pidfd_send_signal(process, signal.SIGKILL)
    finally:
        os.close(process)
