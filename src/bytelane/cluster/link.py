"""A host's link: rates, and the costs per message: overhead, latency and floor."""

import msgspec

from bytelane.errors import InputError
from bytelane.units import FASTEST_RATE, LONGEST_S, SLOWEST_RATE, format_rate, format_seconds
from bytelane.values import as_number, require_number, require_whole

# The simulator remembers the end of each message that a link has under way.
MOST_AT_ONCE = 64
USUAL_AT_ONCE = 2


class Link(msgspec.Struct, frozen=True):
    """A host's connection to the network: a rate up and a rate down, and the costs per message.

    ``overhead_s`` is the time the link is occupied per message beside its bytes (theta in the
    literature's cost models); ``latency_s`` passes between the last byte and the moment at which
    the end is known, while the link is already free (lam). ``floor_s`` is the minimum handling time
    per message: threads are woken up on all hosts, for each step of a collective. Messages are
    handled one after the other, while the bytes of another may be on the link. ``at_once`` is how
    many messages the transport has under way at a time: gloo has 2.
    """

    rate: float
    """Bytes per second: up, and down as well unless ``down_rate`` says otherwise."""
    overhead_s: float = 0.0
    latency_s: float = 0.0
    floor_s: float = 0.0
    at_once: int = USUAL_AT_ONCE
    down_rate: float | None = None

    def __post_init__(self) -> None:
        for given in (self.rate, self.down):
            rate = as_number(given, "rate")
            if not SLOWEST_RATE <= rate <= FASTEST_RATE:
                raise InputError(
                    f"a link of {format_rate(rate)} cannot carry anything; its rate must be "
                    f"{format_rate(SLOWEST_RATE)} to {format_rate(FASTEST_RATE)}"
                )
        for field in ("overhead_s", "latency_s", "floor_s"):
            require_number(getattr(self, field), field, 0, LONGEST_S)
        require_whole(self.at_once, "at_once", 1, MOST_AT_ONCE)

    @property
    def up(self) -> float:
        """Bytes per second that leave the host."""
        return self.rate

    @property
    def down(self) -> float:
        """Bytes per second that reach the host."""
        return self.rate if self.down_rate is None else self.down_rate

    @property
    def slower(self) -> float:
        """The rate of a collective that uses both directions at once."""
        return min(self.up, self.down)

    def __str__(self) -> str:
        down = f" up, {format_rate(self.down)} down" if self.down != self.up else ""
        floor = f", floor {format_seconds(self.floor_s)}" if self.floor_s else ""
        at_once = f", {self.at_once} at once" if self.at_once != USUAL_AT_ONCE else ""
        return (
            f"{format_rate(self.rate)}{down}, overhead {format_seconds(self.overhead_s)}, "
            f"latency {format_seconds(self.latency_s)}{floor}{at_once}"
        )
