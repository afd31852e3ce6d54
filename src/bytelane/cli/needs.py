"""Say which package a verb needs, before anything is started without it."""

from importlib.util import find_spec

from bytelane.errors import MissingExtra


def require_torch(what: str) -> None:
    """Refuse to go on where there is no PyTorch."""
    if find_spec("torch") is None:
        raise MissingExtra(f"{what} needs PyTorch; install it with: pip install 'bytelane[torch]'")
