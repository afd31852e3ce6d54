"""Processes in which a version of torch seems to lack some private names.

Torch itself needs most of them, so they are hidden from Bytelane alone. Nothing of Bytelane may
have looked a name up before, so this imports nothing that does.
"""

from collections.abc import Sequence
from typing import Any

from bytelane.foreign import names


def hide(rank: int, paths: Sequence[str]) -> None:
    """Let these names not be found any more in this process."""
    look_up = names._look_up

    def look(path: str, samples: Any) -> Any:
        return names._ABSENT if path in paths else look_up(path, samples)

    names._look_up = look
