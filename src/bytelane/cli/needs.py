"""Check that an optional package is installed, before a verb starts work."""

from importlib.util import find_spec

from bytelane.errors import MissingExtra


def require_torch(what: str) -> None:
    """Refuse to go on where there is no PyTorch."""
    if find_spec("torch") is None:
        raise MissingExtra(f"{what} needs PyTorch; install it with: pip install 'bytelane[torch]'")
