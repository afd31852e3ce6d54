"""What the tests of the laboratory share: does it work here, and is anything left of it?"""

import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from bytelane.errors import LabError
from bytelane.lab import Lab
from bytelane.lab.clean import lab_processes
from bytelane.lab.process_tag import MARKER

ENDING_S = 15.0


@cache
def why_no_namespaces() -> str:
    """The reason why mode namespace does not work here; empty where it does."""
    try:
        with Lab(2, "100Mbit", mode="namespace"):
            return ""
    except LabError as error:
        return str(error)


def why_not(mode: str) -> str:
    if not sys.platform.startswith("linux"):
        return "the laboratory needs Linux"
    return why_no_namespaces() if mode == "namespace" else ""


def need(mode: str) -> None:
    """Skip, with the reason, what this machine cannot do."""
    if reason := why_not(mode):
        pytest.skip(reason)


@pytest.fixture(params=["namespace", "pacing"])
def mode(request: pytest.FixtureRequest) -> str:
    """Each mode that works here."""
    need(request.param)
    return str(request.param)


def members(owner_pid: int) -> set[int]:
    """The processes of the labs that a process has, or has had."""
    return {pid for pid, lab in lab_processes() if lab.owner == owner_pid}


def remains(owner_pid: int) -> set[int]:
    """What is still there of a process's labs after they had time to go."""
    deadline = time.monotonic() + ENDING_S
    while (left := members(owner_pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


class Heard:
    """Collects what ranks say."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, str]] = []

    def __call__(self, rank: int, stream: str, line: str) -> None:
        self.lines.append((rank, stream, line))

    def of(self, rank: int, stream: str = "out") -> list[str]:
        return [line for r, s, line in self.lines if (r, s) == (rank, stream)]


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def process_marked(mark: object) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, MARKER: str(mark)})
    while b"sleep" not in command(process.pid):
        time.sleep(0.01)
    return process
