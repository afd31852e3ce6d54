"""Run system tools (ip, tc, unshare) with a time limit, and return their output."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from bytelane.errors import LabError
from bytelane.lab.linux import die_with_parent

PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}


class ToolFailed(LabError):
    """A command ended with an error; the message is the last line of its output."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words[-1])
        self.words = words


def search_path() -> str:
    """Return PATH with the folders of system tools."""
    # An ordinary user of Debian has no sbin on the path, where ip and tc are.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def find_tool(name: str) -> str:
    """Return the path of a tool; the error says how to install it."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise LabError(f"no {name} command; sudo apt install {PACKAGES.get(name, name)}")
    return found


def run_tool(
    command: Sequence[str],
    *,
    text: str = "",
    limit_s: float = 20.0,
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the output of a command; if it fails, its last line is the error."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "PATH": search_path(), "LC_ALL": "C", **(environment or {})},
        text=True,
        errors="replace",
        start_new_session=True,
        # In a session of its own no signal of the terminal reaches it.
        preexec_fn=die_with_parent if sys.platform.startswith("linux") else None,
    ) as process:
        try:
            out, err = process.communicate(text, timeout=limit_s)
        except BaseException as reason:
            os.killpg(process.pid, signal.SIGKILL)  # with its children, also on Ctrl-C
            if isinstance(reason, subprocess.TimeoutExpired):
                raise LabError(f"no answer within {limit_s:g} s") from None
            raise
    if process.returncode:
        said = (err.strip() or out.strip()).splitlines()
        raise ToolFailed(said or [f"exit code {process.returncode}"])
    return out.strip()


def run_batch(tool: str, lines: Sequence[str]) -> None:
    """Run many lines of ``ip`` or ``tc`` in one process."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        run_tool([find_tool(tool), "-batch", "-"], text=text)
    except ToolFailed as error:
        # The reason comes first; then "Command failed -:3", where 3 is the number of the line.
        number = re.fullmatch(r"Command failed -:(\d+)", error.words[-1])
        line = lines[int(number[1]) - 1] if number else "?"
        raise LabError(f"{tool} {line}: {error.words[0]}") from None
