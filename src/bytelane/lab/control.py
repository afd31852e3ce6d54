"""The owner's side of a lab: start the supervisor process, send it requests, end it."""

import os
import subprocess
import sys
import tempfile
import threading
from typing import IO

import msgspec

from bytelane.errors import LabError
from bytelane.lab.clean import end_lab
from bytelane.lab.messages import Answer, Blueprint, Done, Refused, Request, channel_pair
from bytelane.lab.process_tag import MARKER, LabName
from bytelane.lab.tools import find_tool

# Processes, mounts and network of its own. If it is killed, so is everything in it.
NAMESPACES = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# An ordinary user may do that in a user namespace, with the same user id inside.
AS_USER = ["--user", "--map-current-user", "--keep-caps"]

ENDING_S = 10.0


class Control:
    """A running supervisor."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._lock = threading.Lock()
        self._name = LabName.new()
        self._channel, theirs = channel_pair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the supervisor
        owner = os.pidfd_open(os.getpid())
        plan = msgspec.json.encode(blueprint).decode()
        try:
            self._process = subprocess.Popen(
                [*_supervisor(blueprint), str(theirs.fileno()), str(owner), plan],
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
        """Send a request, and wait until it is done; raise the reason of a refusal."""
        with self._lock:
            try:
                self._channel.send(request, files)
                return self._await_answer()
            except LabError:
                raise
            except BaseException:
                self._channel.close()  # or the next request would get the answer to this one
                raise

    def close(self) -> None:
        """End the supervisor, and with it all processes of the lab."""
        self._channel.close()
        self._words.close()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._process.wait():
            end_lab(self._name)  # a supervisor that was killed may not have ended everything

    def _await_answer(self) -> int:
        received = self._channel.receive()
        if received is None:
            self._process.wait(ENDING_S)
            raise LabError(f"the lab's supervisor has ended: {_last_line(self._words)}")
        answer: Answer = received[0]  # type: ignore[assignment]
        match answer:
            case Refused(reason):
                raise LabError(reason)
            case Done(process):
                return process


def _supervisor(blueprint: Blueprint) -> list[str]:
    supervisor = [
        sys.executable,
        "-P",
        "-m",
        "bytelane.lab.supervisor",
    ]  # -P: no modules from the current folder
    if blueprint.mode == "pacing":
        return supervisor
    as_user = [] if os.geteuid() == 0 else AS_USER
    return [find_tool("unshare"), *as_user, *NAMESPACES, "--", *supervisor]


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").splitlines()
    return lines[-1] if lines else "it printed nothing"
