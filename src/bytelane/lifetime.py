"""Remove temporary folders and end child processes with their command, even if it is killed.

The owner of a temporary folder holds a lock in it until it ends, by whatever signal. The next
command that needs a folder, and ``bytelane lab clean``, remove folders whose lock is free; a child
process that knows the folder waits for that lock, and ends when it gets it.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PREFIX = "bytelane-run-"
LOCK = "owner.lock"
# A folder without a lock is being made, or being removed, or was left at that moment.
IN_BETWEEN_S = 600.0


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a private temporary folder, removed at the end; remove those of killed commands."""
    import tempfile  # not at the top: --help does not need it

    remove_abandoned()
    with (
        contextlib.ExitStack() as after,
        tempfile.TemporaryDirectory(prefix=PREFIX) as name,
    ):
        folder = Path(name)
        lock = after.enter_context(open(folder / "lock", "wb"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(folder / "lock", folder / LOCK)  # locked before it has its name
        yield folder


def remove_abandoned() -> list[Path]:
    """Remove the temporary folders of this user's commands that were killed; return them."""
    import tempfile

    return [f for f in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _is_removed(f)]


def _is_removed(folder: Path) -> bool:
    """Remove a folder if it is ours and its owner has ended."""
    try:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False  # another user's, or a symbolic link
        if not (folder / LOCK).exists() and time.time() - found.st_mtime < IN_BETWEEN_S:
            return False
        with contextlib.ExitStack() as held:
            with contextlib.suppress(FileNotFoundError):
                # For writing: over NFS an exclusive lock needs that.
                lock = held.enter_context(open(folder / LOCK, "r+b"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)  # follows no links
    except OSError:  # in use, or gone meanwhile
        return False
    return True


def end_with_owner(folder: Path) -> None:
    """Make this process exit when the owner of a temporary folder has ended."""

    def wait() -> None:
        with contextlib.suppress(OSError), open(folder / LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            os._exit(1)

    _in_background(wait)


def end_with_parent() -> None:
    """Make this process, which multiprocessing has started, exit when its parent has ended.

    That includes a parent that was killed before this call.
    """
    import multiprocessing

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    _in_background(wait)


def _in_background(wait: Callable[[], None]) -> None:
    threading.Thread(target=wait, name="bytelane-owner", daemon=True).start()


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that the block cleans up before it ends.

    An ignored signal, as under nohup, stays ignored. A second signal does not interrupt the
    clean-up.
    """
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]

    def end(number: int, frame: object) -> None:
        for one in numbers:
            signal.signal(one, lambda *_: None)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
