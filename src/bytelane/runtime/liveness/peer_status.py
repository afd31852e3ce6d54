"""Status of a peer: progress, process state and silence, as sentences for waiting messages."""

from collections.abc import Sequence
from typing import NamedTuple

from bytelane.runtime.liveness.message import Kind, State
from bytelane.runtime.liveness.rank_names import MOST_NAMES, name_ranks

_CONDITIONS = {
    State.UNKNOWN: "is alive",
    State.RUNNING: "is alive (running)",
    State.SLEEPING: "is alive (sleeping)",
    State.STOPPED: "is stopped by a signal",
    State.TRACED: "is held by a debugger",
}
QUIET_S = 5.0  # several heartbeats
_ENDINGS = {Kind.LEFT: "has left", Kind.DIED: "has died", Kind.FAILED: "has failed"}


class PeerStatus(NamedTuple):
    """The last news of a peer."""

    rank: int
    progress: int
    state: State
    kind: Kind
    silent_s: float | None
    """Since it was heard of; None if it never was."""

    @property
    def is_quiet(self) -> bool:
        """Tell whether it has not been heard of for a while, so that its progress is old."""
        return self.silent_s is not None and self.silent_s >= QUIET_S

    @property
    def condition(self) -> str:
        """Describe its state, beginning with a verb: ``is alive (running)``."""
        if self.kind in _ENDINGS:
            return _ENDINGS[self.kind]
        if self.silent_s is None:
            return "was never heard of"
        if self.is_quiet:
            return f"has not been heard of for {self.silent_s:.0f} s"
        return _CONDITIONS[self.state]


def who_is_behind(behind: Sequence[PeerStatus]) -> str:
    """Say why nothing arrives: ``rank 2 is awaited; it has not been heard of for 60 s``."""
    if not behind:
        return "no rank is behind, so the network is slow"
    verb = "is" if len(behind) == 1 else "are"
    return f"{_names(behind)} {verb} awaited; {_conditions(behind)}"


def waiting_line(behind: Sequence[PeerStatus], waited_s: float) -> str:
    """Say which ranks we wait for: ``waiting for rank 2 for 60 s; it is alive (running)``."""
    if not behind:
        return f"waiting for {waited_s:.0f} s; {who_is_behind(behind)}"
    return f"waiting for {_names(behind)} for {waited_s:.0f} s; {_conditions(behind)}"


def _names(behind: Sequence[PeerStatus]) -> str:
    return name_ranks([status.rank for status in behind])


def _conditions(behind: Sequence[PeerStatus]) -> str:
    if len(behind) == 1:
        return f"it {behind[0].condition}"
    return ", ".join(f"rank {one.rank} {one.condition}" for one in behind[:MOST_NAMES])
