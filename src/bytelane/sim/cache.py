"""The cache folder for compiled code, private to this user (mode 0700).

To load compiled code is to run it, so another user who can put a file there, or put another folder
in its place, runs code as this user. The folder must belong to this user with mode 0700, everything
in it must belong to this user, and no other user but root may be able to replace a folder or a link
on the way there. The folders above the user's home are trusted, as sshd trusts them for its keys.
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

ROOT = 0
_MOST_LINKS = 40  # as the kernel


class NotPrivate(Exception):
    """No folder to keep compiled code in that is safe from other users; the message says why."""


def cache_folder() -> Path:
    """Return the folder in which caches are to be kept."""
    wanted = os.environ.get("BYTELANE_CACHE")
    if wanted:
        return Path(wanted).absolute()
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # neither HOME nor an entry in passwd, as in some containers
        raise NotPrivate("this user has no home folder") from None
    return Path(base).absolute() / "bytelane"


def require_private(folder: Path) -> None:
    """Make a folder private to this user, or raise NotPrivate if an existing one is not."""
    try:
        for path, found in _way_to(folder):
            _require_irreplaceable(path, found)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode):
            raise NotPrivate(f"{folder} is not a folder")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise NotPrivate(f"{folder} is not this user's alone (mode 0700)")
        for entry in _entries(folder):
            _require_own(entry)
    except OSError as error:
        raise NotPrivate(f"{error.filename or folder}: {error.strerror}") from None


def _way_to(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every folder and link on the path, from the home or the root; make missing ones."""
    here, parts = _start(folder)
    yield here, os.stat(here)
    links = 0
    while parts:
        part = parts.pop()
        if part == os.sep:
            here = Path(os.sep)
            continue
        if part == os.pardir:
            here = here.parent
            continue
        path = here / part
        try:
            os.mkdir(path, 0o700)  # whatever the umask: never open to others, even for a moment
        except FileExistsError:
            pass
        except OSError:
            if not os.path.lexists(path):
                raise
        found = os.lstat(path)
        yield path, found
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            parts += reversed(Path(os.readlink(path)).parts)
        else:
            here = path


def _start(folder: Path) -> tuple[Path, list[str]]:
    """Return the folder to start from, and the remaining parts of the path, the next one last."""
    try:
        home = Path.home()
        return home, [*reversed(folder.relative_to(home).parts)]
    except (RuntimeError, ValueError):  # no home, or not below it
        return Path(os.sep), [*reversed(folder.parts)]


def _require_irreplaceable(path: Path, found: os.stat_result) -> None:
    """Require that only this user and root can replace a folder or link on the path."""
    if found.st_uid not in _trusted_owners():
        raise NotPrivate(f"{path} belongs to another user")
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return  # in a sticky folder, as /tmp is one, only the owner renames an entry
    if found.st_mode & stat.S_IWOTH or (
        found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
    ):
        raise NotPrivate(f"{path} can be written by other users")


def _require_own(entry: Path) -> None:
    try:
        found = os.lstat(entry)
    except FileNotFoundError:
        return  # another process was writing it
    if found.st_uid != os.geteuid():
        raise NotPrivate(f"{entry} belongs to another user")
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        raise NotPrivate(f"{entry} is neither a file nor a folder")


def _entries(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):  # follows no links
        for name in (*folders, *files):
            yield Path(place, name)


def _trusted_owners() -> set[int]:
    owners = {ROOT, os.geteuid()}
    if not _knows_all_users():
        # In a user namespace, such as a lab's, all users that are not mapped, root among them, have
        # the same number.
        owners.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    return owners


def _knows_all_users() -> bool:
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return True
    return any(int(line.split()[2]) == 2**32 - 1 for line in lines)


def _is_own_group(gid: int) -> bool:
    """Tell whether a group has no other member: many systems give each user one, and umask 002."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    own = gid == user.pw_gid and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}
