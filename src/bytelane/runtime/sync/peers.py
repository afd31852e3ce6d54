"""Name the rank whose loss made a transfer fail."""

from bytelane.errors import (
    PeerError,
    PeerLost,
    ServerLost,
    TransferFailed,
    TransferInterrupted,
)
from bytelane.runtime.sync.protocols import KnowsPeers

# A transfer to a dead rank fails before its sentinel has reported the death; or, if the sentinel
# has died too, before the other sentinels have noticed.
VERDICT_S = 8.0
# A rank that has left in order explains a failed transfer, unless another's loss becomes known.
_LEFT_S = 1.0
# What a rank had sent before it left arrives within this time, from the buffers of its host.
_IN_BUFFERS_S = 5.0


def name_failure(error: Exception, peers: KnowsPeers) -> Exception:
    """Return the lost rank as an error, if its loss made a transfer fail.

    A rank that has launched as many operations as this one may have left in order, and closed its
    connections before the last of them was over.
    """
    if isinstance(error, ServerLost | TransferInterrupted):
        return error
    for _ in range(round(VERDICT_S / _LEFT_S)):
        if (loss := peers.loss(_LEFT_S)) is not None:
            return loss
        if left := peers.left():
            return _has_left(left[0])
    return TransferFailed(f"a transfer between ranks failed: {error}")


def loss_while_waiting(peers: KnowsPeers) -> PeerError | None:
    """Return the lost rank that this wait is in vain for.

    Gloo sometimes misses that a peer has closed its connections, and then waits for 30 min.
    """
    if (loss := peers.loss()) is not None:
        return loss
    left = peers.left(_IN_BUFFERS_S)
    return _has_left(left[0]) if left else None


def _has_left(rank: int) -> PeerLost:
    return PeerLost(f"rank {rank} has left while a transfer was under way", rank)


class UnknownPeers:
    """Peers without sentinels: nothing is known of the other ranks."""

    def count(self) -> None: ...

    def count_finished(self) -> None: ...

    def loss(self, wait_s: float = 0.0) -> PeerError | None:
        return None

    def left(self, for_s: float = 0.0) -> list[int]:
        return []

    def still_waiting(self, waited_s: float) -> None: ...

    def who_is_behind(self) -> str:
        return "another rank is slow, or does something else"

    def report_failure(self, message: str) -> None: ...
