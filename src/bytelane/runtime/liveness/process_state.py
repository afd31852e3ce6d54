"""State and end of a rank's process, read by its sentinel from ``/proc`` and a pidfd."""

import os
import select

from bytelane.runtime.liveness.message import State

_STATES = {
    b"R": State.RUNNING,
    b"S": State.SLEEPING,
    b"D": State.SLEEPING,
    b"I": State.SLEEPING,
    b"T": State.STOPPED,
    b"t": State.TRACED,  # a debugger holds it, and will let it go
}


class WatchedProcess:
    """Watches a process by files that it has opened itself, so that a reused pid cannot mislead.

    ``pidfd`` and ``stat`` (``/proc/self/stat``) are None where the system does not have them. Then
    a changed parent of the sentinel shows its end, and its state stays unknown.
    """

    def __init__(self, pid: int, pidfd: int | None, stat: int | None) -> None:
        self._pid = pid
        self.pidfd = pidfd
        """Readable when the process has ended."""
        self._stat = stat
        self._poll = select.poll()
        if pidfd is not None:
            self._poll.register(pidfd, select.POLLIN)

    def has_ended(self) -> bool:
        # Not the end of a pipe: children that the rank has forked would hold it open.
        if self.pidfd is None:
            return os.getppid() != self._pid
        return bool(self._poll.poll(0))

    def state(self) -> State:
        if self._stat is None:
            return State.UNKNOWN
        try:
            return parse_state(os.pread(self._stat, 512, 0))
        except OSError:  # it has ended
            return State.UNKNOWN


def parse_state(stat: bytes) -> State:
    """Read the state from ``/proc/PID/stat``; it follows the name, which may hold anything."""
    after_name = stat.rpartition(b")")[2].split()
    return _STATES.get(after_name[0], State.UNKNOWN) if after_name else State.UNKNOWN
