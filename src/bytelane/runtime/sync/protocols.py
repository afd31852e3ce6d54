"""Interfaces of the synchroniser: Transport, Exchange, Framework, Plans, KnowsPeers.

Structural types: inheriting is optional. Three things differ between ways to train: how bytes
travel (:class:`Transport`), what a tensor contributes and what its arrival means
(:class:`Exchange`: a gradient and a deferred step under all-reduce, new weights under a parameter
server), and the framework around it (:class:`Framework`). :class:`Plans` makes the plans, and
:class:`KnowsPeers` knows the state of the other ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from bytelane.core import Plan
from bytelane.errors import PeerError

Message = tuple[int, ...]
"""Operations that travel together; under a plan, one."""
Done = Callable[[Message, Exception | None], None]
"""Called once per launched message, from any thread, with its operations and any error."""


class Contribution(NamedTuple):
    """What a rank adds to the sum of a tensor."""

    tensor: int
    value: Any
    """Dense, in the framework's own type; the transport sums it in place."""
    used: bool = True
    """Whether this rank's backward pass has made it."""


class Transfer(NamedTuple):
    """One operation that is over."""

    operation: int
    launched_at: float
    finished_at: float


class Transport(Protocol):
    """Sums the contributions of all ranks, round by round."""

    @property
    def signalled(self) -> int:
        """The signal that rank 0 sent with the last round; 0 means none."""

    def begin_round(self, step: int, number: int, *, signal: int = 0) -> None:
        """Begin a round, all ranks the same one."""

    def take(self, contributions: Sequence[Contribution]) -> None:
        """Keep these contributions, whose memory is the transport's until :meth:`forget`."""

    def start(self, message: Message, done: Done) -> None:
        """Launch operations whose tensors were all taken. Must not wait for the network."""

    def forget(self, tensor: int) -> None:
        """Let go of a tensor that has arrived."""

    def was_used(self, tensor: int) -> bool:
        """Tell, of a tensor that has arrived, whether any rank's backward pass has reached it."""


class Waits(Protocol):
    """The part of an engine that a framework uses to wait."""

    def wait(self, tensors: Iterable[int]) -> None:
        """Block this thread until all of these have arrived, or raise the failure."""

    def wait_for_launch(self, tensors: Iterable[int]) -> None:
        """Block this thread only until all of their operations are launched."""

    def drain(self, limit_s: float) -> bool:
        """Tell whether all launched operations are over within this time."""


class Framework(Protocol):
    """The training around the tensors: its contexts, and its way to wait."""

    def plainly(self) -> AbstractContextManager[None]:
        """Leave the modes that the user's code may be in."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """Like ``plainly``, and the access guard ignores tensors that are used within."""

    def interrupting_backward(self) -> AbstractContextManager[None]:
        """Like ``undisturbed``, and time spent within is not counted as computing."""

    def in_backward(self) -> bool:
        """Tell whether a backward pass is under way in this thread."""

    def wait(self, engine: Waits, tensors: Sequence[int]) -> None:
        """Order later work after these tensors: the host blocks, or a stream does."""

    def catch_up(self, engine: Waits) -> None:
        """Block the host until the last round is over; nothing to do where it waits anyway."""

    def round_opened(self) -> None:
        """From now on tensors may be missing."""

    def round_completed(self) -> None:
        """Every tensor has taken part."""

    def round_closed(self, plan: Plan, transfers: Sequence[Transfer]) -> None:
        """Every tensor is settled; these are the round's transfers."""


class Exchange(Protocol):
    """What a tensor contributes, and what its arrival means."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def lend(self, tensor: int, used: bool) -> Any:
        """Return this rank's contribution; it is not touched until it is given back."""

    def lend_nothing(self, tensor: int) -> Any:
        """Return a contribution that changes no sum."""

    def give_back(self, tensor: int, used: bool) -> None:
        """Show the user the sum that has arrived; a tensor that no rank has used is unchanged."""

    def update(self, tensors: Sequence[int], used: Callable[[int], bool]) -> None:
        """Give these back, and make the updates that they are owed."""

    def forget(self, tensor: int) -> None:
        """Apply to the arrived gradient what the user's earlier ``zero_grad()`` asked for."""


class Plans(Protocol):
    """Makes the plans. All ranks call it at the same moments."""

    @property
    def signal(self) -> int:
        """This rank's request; rank 0's travels with every round. 0 means none."""

    def next_plan(
        self, step: int, number: int, granted: int, unused: Callable[[], set[int]]
    ) -> Plan | None:
        """Return a plan for the round that begins; None to keep the one in force.

        ``granted``: rank 0's signal in the last round. ``unused`` returns the tensors that no
        rank's backward pass has reached in it.
        """


class KnowsPeers(Protocol):
    """The state of the other ranks."""

    def count(self) -> None:
        """Count one more operation launched on this rank."""

    def count_finished(self) -> None:
        """Count one more operation that is over."""

    def loss(self, wait_s: float = 0.0) -> PeerError | None:
        """Return the lost rank as an error, if a loss is known within this time."""

    def left(self, for_s: float = 0.0) -> list[int]:
        """Return the ranks that have ended in order, at least so long ago."""

    def still_waiting(self, waited_s: float) -> None:
        """Print which ranks are awaited."""

    def who_is_behind(self) -> str:
        """Return a sentence: which rank has launched least, and its state."""

    def report_failure(self, message: str) -> None:
        """Tell the others why this rank cannot go on."""
