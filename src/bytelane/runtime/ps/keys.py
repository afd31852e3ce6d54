"""Keys of the parameter server (CURVE): make them, and load them if nobody else can read them."""

import os
import stat
from pathlib import Path
from typing import Literal, NamedTuple

from bytelane.errors import InputError, MissingExtra

Role = Literal["server", "worker"]
ROLES: tuple[Role, Role] = ("server", "worker")
# In Z85, as ZeroMQ writes keys.
_KEY_CHARACTERS = 40
_Z85 = frozenset(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_USE = stat.S_IRWXG | stat.S_IRWXO


class Keys(NamedTuple):
    """What one end needs: its own pair, and the public key of the other end."""

    public: bytes
    secret: bytes
    peer: bytes

    def __repr__(self) -> str:
        return f"Keys(public={self.public!r}, peer={self.peer!r})"  # no secret in any log


def require_zmq() -> None:
    """Refuse to go on where pyzmq is not installed."""
    try:
        import zmq  # noqa: F401
    except ImportError:
        raise MissingExtra(
            "a parameter server needs pyzmq; install it with: pip install 'bytelane[ps]'"
        ) from None


def keygen(folder: Path) -> list[Path]:
    """Write a new pair of keys for the servers and one for the workers; overwrite nothing."""
    require_zmq()
    import zmq

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = [folder / f"{role}.{half}" for role in ROLES for half in ("public", "secret")]
    for path in paths:
        if os.path.lexists(path):
            raise InputError(f"{path} exists, and keys are not overwritten; choose another folder")
    keys = [key for _ in ROLES for key in zmq.curve_keypair()]
    for path, key in zip(paths, keys, strict=True):
        mode = 0o600 if path.suffix == ".secret" else 0o644
        # O_EXCL: refuse also a file that another process has made since the check.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(file, "wb") as out:
            os.fchmod(out.fileno(), mode)  # whatever the umask is
            out.write(key + b"\n")
    return paths


def load_keys(folder: Path, role: Role) -> Keys:
    """Load what one end needs; the folder need not hold the other end's secret."""
    require_zmq()
    other = ROLES[1 - ROLES.index(role)]
    public, secret = _load(folder / f"{role}.public"), _load(folder / f"{role}.secret", secret=True)
    import zmq

    if zmq.curve_public(secret) != public:
        raise InputError(
            f"{folder / role}.public and .secret do not belong together; "
            "make new ones with bytelane ps keygen FOLDER"
        )
    return Keys(public, secret, _load(folder / f"{other}.public"))


def _load(path: Path, *, secret: bool = False) -> bytes:
    """Return a key from a file that is ours, and that others cannot change (secret: nor read)."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputError(
            f"there is no key {path}; make keys with bytelane ps keygen FOLDER"
        ) from None
    with os.fdopen(file, "rb") as source:
        found = os.fstat(source.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path} is not a file")
        if found.st_uid not in (os.geteuid(), 0):
            raise InputError(f"{path} belongs to another user; keys must be your own")
        if found.st_mode & (_OTHERS_USE if secret else _OTHERS_WRITE):
            what, mode = ("use", "600") if secret else ("change", "644")
            raise InputError(f"other users can {what} {path}; run: chmod {mode} {path}")
        key = source.read(_KEY_CHARACTERS + 3).strip()
    if len(key) != _KEY_CHARACTERS or not _Z85.issuperset(key):
        raise InputError(f"{path} holds no key; make keys with bytelane ps keygen FOLDER")
    return key
