"""Linux system calls that Python 3.11 lacks: namespaces, mounts, prctl, pidfd_getfd."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
MS_BIND = 4096
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SYS_PIDFD_GETFD = 438  # the same on every architecture

_libc = ctypes.CDLL(None, use_errno=True)


def new_network_namespace() -> int:
    """Make a network namespace without entering it; return a descriptor that keeps it."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        _check(_libc.unshare(CLONE_NEWNET))
        return os.open("/proc/self/ns/net", os.O_RDONLY)
    finally:
        _check(_libc.setns(here, CLONE_NEWNET))
        os.close(here)


@contextmanager
def in_network_namespace(descriptor: int) -> Iterator[None]:
    """Enter a network namespace inside the block; processes started there stay in it."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    _check(_libc.setns(descriptor, CLONE_NEWNET))
    try:
        yield
    finally:
        _check(_libc.setns(here, CLONE_NEWNET))
        os.close(here)


def cover_file(path: str, text: str) -> None:
    """Mount another text over a file, in this mount namespace only; nothing is written to disk."""
    _check(_libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    try:
        Path("/tmp/cover").write_text(text)
        os.chmod("/tmp/cover", 0o644)
        _check(_libc.mount(b"/tmp/cover", os.fsencode(path), None, MS_BIND, None))
    finally:
        _check(_libc.umount2(b"/tmp", MNT_DETACH))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def die_with_parent() -> None:
    """Be killed when the parent dies. For the moment between fork and exec."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def keep_no_privilege() -> None:
    """Do not pass capabilities of a user namespace on to the next program."""
    _check(_libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))


def copy_descriptor(pid: int, descriptor: int) -> int:
    """Duplicate a file descriptor of another process: our own, or a descendant."""
    process = os.pidfd_open(pid)
    try:
        return _check(_libc.syscall(SYS_PIDFD_GETFD, process, descriptor, 0))
    finally:
        os.close(process)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
