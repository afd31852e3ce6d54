"""Start, signal and reap the commands of a lab; the supervisor is their parent."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from bytelane.errors import LabError
from bytelane.lab.linux import die_with_parent, keep_no_privilege
from bytelane.lab.messages import Start
from bytelane.lab.process_tag import MARKER


class Child:
    """One command, in a session of its own."""

    def __init__(self, request: Start, files: list[int]) -> None:
        self.host = request.host
        out, err, self._ending = files
        try:
            self._process = subprocess.Popen(
                request.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=request.environment | {MARKER.encode(): os.environb[MARKER.encode()]},
                cwd=request.folder,
                start_new_session=True,
                preexec_fn=_before_exec,
            )
        except OSError as error:
            os.close(self._ending)
            name = os.fsdecode(error.filename or request.command[0])
            raise LabError(f"cannot start {name}: {error.strerror}") from None
        finally:
            os.close(out)
            os.close(err)
        self.pid = self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to the process group, if it still exists."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def bury(self) -> None:
        """Kill the rest of its process group, and send its exit code to the owner."""
        self.signal(signal.SIGKILL)  # before the wait, which frees its pid
        _, status = os.waitpid(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(BrokenPipeError):  # the owner has closed it
            os.write(self._ending, str(self._process.returncode).encode())
        os.close(self._ending)


class Children:
    """All commands of a lab, and the orphans that they leave."""

    def __init__(self) -> None:
        self._living: dict[int, Child] = {}

    def start(self, request: Start, files: list[int]) -> Child:
        child = Child(request, files)
        self._living[child.pid] = child
        return child

    def signal(self, pid: int, number: int) -> None:
        if pid in self._living:
            self._living[pid].signal(number)

    def living(self) -> list[Child]:
        return list(self._living.values())

    def reap(self) -> None:
        """Reap every child that has ended."""
        while ended := _somebody_ended():
            child = self._living.pop(ended, None)
            if child:
                child.bury()
            else:
                os.waitpid(ended, 0)  # an orphan

    def end(self, limit_s: float = 5.0) -> None:
        """Kill every descendant; orphans of the killed become children of this process."""
        deadline = time.monotonic() + limit_s
        while (left := _children_of(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                # It has ended, or runs as another user (set-uid) and cannot be killed.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
            self.reap()


def descendants(pid: int) -> Iterable[int]:
    """Yield a process and all its descendants."""
    yield pid
    for child in _children_of(pid):
        yield from descendants(child)


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:
        pass  # it has ended meanwhile
    return found


def _somebody_ended() -> int | None:
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended.si_pid if ended else None


def _before_exec() -> None:
    die_with_parent()
    keep_no_privilege()
