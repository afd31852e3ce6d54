"""The control plane: when all ranks have said something, everyone hears what all have said."""

from bytelane.runtime.ps.frames import MOST_PAYLOAD_BYTES
from bytelane.runtime.ps.round_sums import Misplaced

MOST_PAGES = 256
MOST_OPEN = 256
_PER_RANK_BYTES = 16  # of msgpack, generously


def most_said_bytes(world: int) -> int:
    """Return how much each of so many ranks may say in one exchange."""
    return MOST_PAYLOAD_BYTES // world - _PER_RANK_BYTES


class Exchanges:
    """Contributions of all ranks to exchanges, which are numbered upwards within a page."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._open: dict[tuple[str, int], dict[int, bytes]] = {}
        self._over: dict[str, int] = {}
        """Page -> number of the last exchange that is over."""

    def say(self, rank: int, page: str, number: int, said: bytes) -> list[bytes] | Misplaced | None:
        """Keep what a rank says; return what all ranks have said if it was the last."""
        if len(said) > self.most_bytes:
            return Misplaced("an exchange is too large")
        if number <= self._over.get(page, -1):
            return Misplaced("an exchange is over")
        key = page, number
        if key not in self._open and len(self._open) >= MOST_OPEN:
            return Misplaced("too many exchanges are open")
        if page not in self._over and len(self._over) >= MOST_PAGES:
            return Misplaced("too many pages of exchanges")
        heard = self._open.setdefault(key, {})
        if rank in heard:
            return Misplaced("a rank says two things in one exchange")
        heard[rank] = said
        if len(heard) < self._world:
            return None
        del self._open[key]
        self._over[page] = number
        return [heard[rank] for rank in range(self._world)]

    @property
    def most_bytes(self) -> int:
        """How much a rank may say, so that all of it fits into one message."""
        return most_said_bytes(self._world)
