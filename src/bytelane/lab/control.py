"""The owner's side of a lab: start its keeper, ask it for things, see that it ends."""

import os
import subprocess
import sys
import tempfile
import threading
from typing import IO

import msgspec

from bytelane.errors import LabError
from bytelane.lab.clean import end_lab
from bytelane.lab.marker import MARKER, LabName
from bytelane.lab.messages import Answer, Blueprint, Done, Refused, Request, channel_pair
from bytelane.lab.tools import find_tool

# Processes, mounts and network of its own. If it is killed, so is everything in it.
NAMESPACES = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# An ordinary user may do that in a user namespace; who they are stays the same inside.
AS_USER = ["--user", "--map-current-user", "--keep-caps"]

ENDING_S = 10.0


class Control:
    """A running keeper."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._lock = threading.Lock()
        self._name = LabName.new()
        self._channel, theirs = channel_pair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the keeper
        owner = os.pidfd_open(os.getpid())
        plan = msgspec.json.encode(blueprint).decode()
        try:
            self._process = subprocess.Popen(
                [*_keeper(blueprint), str(theirs.fileno()), str(owner), plan],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                pass_fds=[theirs.fileno(), owner],
                env=os.environ | {MARKER: str(self._name)},
                start_new_session=True,  # Ctrl-C is for the owner
            )
        except BaseException:
            self._words.close()
            self._channel.close()
            raise
        finally:
            theirs.close()
            os.close(owner)
        try:
            self._await_answer()
        except BaseException:
            self.close()
            raise

    def ask(self, request: Request, files: list[int] | None = None) -> int:
        """Have something done, or raise the keeper's reason why not."""
        with self._lock:
            try:
                self._channel.send(request, files)
                return self._await_answer()
            except LabError:
                raise
            except BaseException:
                self._channel.close()  # or the next question would get this one's answer
                raise

    def close(self) -> None:
        """End the keeper, and with it everything."""
        self._channel.close()
        self._words.close()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._process.wait():
            end_lab(self._name)  # a keeper that was killed may not have ended everything

    def _await_answer(self) -> int:
        received = self._channel.receive()
        if received is None:
            self._process.wait(ENDING_S)
            raise LabError(f"the lab's keeper has ended: {_last_line(self._words)}")
        answer: Answer = received[0]  # type: ignore[assignment]
        match answer:
            case Refused(reason):
                raise LabError(reason)
            case Done(process):
                return process


def _keeper(blueprint: Blueprint) -> list[str]:
    keeper = [sys.executable, "-P", "-m", "bytelane.lab.keeper"]  # -P: nothing from here
    if blueprint.mode == "pacing":
        return keeper
    as_user = [] if os.geteuid() == 0 else AS_USER
    return [find_tool("unshare"), *as_user, *NAMESPACES, "--", *keeper]


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"
