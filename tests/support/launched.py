"""Commands that must end: one that does not is asked where it stands."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

END_S = 100.0
LAST_WORDS_S = 10.0


def run_to_the_end(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what it printed; fail with the stacks of all its processes if it hangs."""
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        for pid in [*_descendants(process.pid), process.pid]:
            os.kill(pid, signal.SIGABRT)
        output, errors = process.communicate(timeout=LAST_WORDS_S)
        pytest.fail(f"did not end within {END_S:g} s\n{output}\n{errors}")
    assert process.returncode == 0, errors
    return output


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield from _descendants(child)
            yield child
