"""Count messages that cannot be used, by reason; print at most one line per second and reason."""

from collections import Counter
from collections.abc import Callable

EVERY_S = 1.0


class Drops:
    """Dropped messages, by reason. Reasons are a small fixed set: a peer cannot invent one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._say = say
        self._said: Counter[str] = Counter()
        self._said_at: dict[str, float] = {}

    def count(self, reason: str, now: float) -> None:
        """Count a dropped message."""
        self.counts[reason] += 1
        if now - self._said_at.get(reason, -EVERY_S) >= EVERY_S:
            self._said_at[reason] = now
            dropped = self.counts[reason] - self._said[reason]
            self._said[reason] = self.counts[reason]
            self._say(f"{dropped:,} message{'s' if dropped > 1 else ''} dropped: {reason}")
