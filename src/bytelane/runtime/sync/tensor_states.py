"""The state of every tensor: one table of transitions; an event that is not in it is refused.

A *round* sums every tensor over the ranks once. A tensor takes part when its gradient is complete
(``collect``), leaves with the other gradients of its operation (``hand over``), and is settled when
it has arrived: its gradient is the mean, or its weights are updated. If ``step()`` is called while
it is under way, its update is owed (``defer``), and ``zero_grad()`` may come before it arrives
(``discard``). Nothing here waits, sends or computes.
"""

from collections.abc import Iterable
from enum import IntEnum

from bytelane.core import Plan
from bytelane.errors import IllegalEvent


class State(IntEnum):
    """Where a tensor is in the round that is open; between two rounds, idle or local."""

    IDLE = 0
    """It has not taken part yet."""
    LOCAL = 1
    """Not taken part yet, but backward passes within ``no_sync`` have added to its gradient."""
    COLLECTED = 2
    """Its gradient is complete, and waits for the others of its operation."""
    IN_FLIGHT = 3
    """Its gradient belongs to the transport."""
    DISCARDED = 4
    """In flight, but the user has thrown the gradient away."""
    OWED = 5
    """In flight, and its weights get their update when it has arrived."""
    OWED_AND_DISCARDED = 6
    """Owed; the gradient is needed for the update only."""
    SETTLED = 7
    """It has taken part, and is up to date."""
    SETTLED_AND_LOCAL = 8
    """It has taken part; a later backward pass within ``no_sync`` has added to its gradient."""


class Happening(IntEnum):
    """What can happen to a tensor."""

    ACCUMULATE = 0
    """A backward pass within ``no_sync`` has added to its gradient."""
    COLLECT = 1
    """It takes part in the round."""
    HAND_OVER = 2
    """Its operation has all of its gradients."""
    DISCARD = 3
    """The user has called ``zero_grad()``."""
    DEFER = 4
    """The user has called ``step()``, and it has not arrived."""
    SETTLE = 5
    """It has arrived, and is up to date now."""
    CLOSE = 6
    """The round is over."""


TRANSITIONS: dict[State, dict[Happening, State]] = {
    State.IDLE: {
        Happening.ACCUMULATE: State.LOCAL,
        Happening.COLLECT: State.COLLECTED,
        Happening.DISCARD: State.IDLE,
    },
    State.LOCAL: {
        Happening.ACCUMULATE: State.LOCAL,
        Happening.COLLECT: State.COLLECTED,
        Happening.DISCARD: State.IDLE,
    },
    State.COLLECTED: {Happening.HAND_OVER: State.IN_FLIGHT},
    State.IN_FLIGHT: {
        Happening.DISCARD: State.DISCARDED,
        Happening.DEFER: State.OWED,
        Happening.SETTLE: State.SETTLED,
    },
    State.DISCARDED: {Happening.DISCARD: State.DISCARDED, Happening.SETTLE: State.SETTLED},
    State.OWED: {
        Happening.DISCARD: State.OWED_AND_DISCARDED,
        Happening.SETTLE: State.SETTLED,
    },
    State.OWED_AND_DISCARDED: {
        Happening.DISCARD: State.OWED_AND_DISCARDED,
        Happening.SETTLE: State.SETTLED,
    },
    State.SETTLED: {
        Happening.ACCUMULATE: State.SETTLED_AND_LOCAL,
        Happening.DISCARD: State.SETTLED,
        Happening.CLOSE: State.IDLE,
    },
    State.SETTLED_AND_LOCAL: {
        Happening.ACCUMULATE: State.SETTLED_AND_LOCAL,
        Happening.DISCARD: State.SETTLED,
        Happening.CLOSE: State.LOCAL,
    },
}

# The same as tuples: faster for hooks that run for every gradient.
_ROWS = tuple(tuple(TRANSITIONS[state].get(what) for what in Happening) for state in State)
_MISSING, _IN_FLIGHT, _OWED, _SETTLED = range(4)
_GROUP = (
    *(_MISSING, _MISSING),
    *(_IN_FLIGHT, _IN_FLIGHT, _IN_FLIGHT),
    *(_OWED, _OWED),
    *(_SETTLED, _SETTLED),
)


class Tensors:
    """All tensors of a model, by number."""

    def __init__(self, count: int, local: Iterable[int] = ()) -> None:
        self._states = [State.IDLE] * count
        self._groups: tuple[set[int], ...] = (set(range(count)), set(), set(), set())
        self.missing, self.in_flight, self.owed, _ = self._groups
        """Tensors that have not taken part; that have, before step(); that are owed an update."""
        for tensor in local:
            self.move(Happening.ACCUMULATE, tensor)

    def __len__(self) -> int:
        return len(self._states)

    def state(self, tensor: int) -> State:
        return self._states[tensor]

    def is_local(self, tensor: int) -> bool:
        """Tell whether backward passes of this rank have added to a gradient without summing it."""
        return self._states[tensor] in (State.LOCAL, State.SETTLED_AND_LOCAL)

    def is_discarded(self, tensor: int) -> bool:
        """Tell whether the user has thrown the gradient away before it has arrived."""
        return self._states[tensor] in (State.DISCARDED, State.OWED_AND_DISCARDED)

    @property
    def are_settled(self) -> bool:
        """Tell whether all have taken part, and are up to date."""
        return not (self.missing or self.in_flight or self.owed)

    def move(self, what: Happening, tensor: int) -> None:
        """Apply a transition to one tensor; refuse one that is not in the table."""
        states = self._states  # every gradient passes here several times
        state = states[tensor]
        following = _ROWS[state][what]
        if following is None:
            raise IllegalEvent(f"tensor {tensor} is {state.name}: it cannot {_verb(what)}")
        states[tensor] = following
        before, after = _GROUP[state], _GROUP[following]
        if before != after:
            self._groups[before].discard(tensor)
            self._groups[after].add(tensor)

    def move_all(self, what: Happening, tensors: Iterable[int]) -> None:
        """Apply a transition to these tensors, or, if one of them refuses, to none."""
        tensors = set(tensors)
        refusing = [t for t in tensors if _ROWS[self._states[t]][what] is None]
        for tensor in refusing or tensors:
            self.move(what, tensor)

    def close(self) -> None:
        """End a round of which all tensors are settled."""
        closed = [_ROWS[state][Happening.CLOSE] for state in self._states]
        if None in closed:
            self.move_all(Happening.CLOSE, range(len(closed)))  # which refuses
        # One by one this would cost as much as a gradient's whole way.
        self._states[:] = closed  # type: ignore[assignment]
        self._groups[_SETTLED].clear()
        self.missing.update(range(len(closed)))


def _verb(what: Happening) -> str:
    return what.name.lower().replace("_", " ")


class Collected:
    """Gradients that wait for the others of their operation.

    An operation cannot be sent before it has all its gradients, so they are handed over together:
    one call per operation instead of one per tensor, of which a model has many small ones. No
    operation is launched later for that.
    """

    def __init__(self, plan: Plan) -> None:
        tensors = [{part.tensor for part in operation.parts} for operation in plan.operations]
        self._needed = [len(own) for own in tensors]
        self._operations: list[list[int]] = [[] for _ in plan.tensor_bytes]
        for number, own in enumerate(tensors):
            for tensor in own:
                self._operations[tensor].append(number)
        self.begin()

    def begin(self) -> None:
        """Begin a round, in which every tensor comes once."""
        self._lacking = self._needed.copy()
        self._waiting: list[tuple[int, bool]] = []

    def add(self, tensor: int, used: bool) -> bool:
        """Add a gradient, and tell whether some operation has all of its gradients now.

        ``used``: whether a backward pass of this rank has reached it.
        """
        self._waiting.append((tensor, used))
        complete = False
        for operation in self._operations[tensor]:
            self._lacking[operation] -= 1
            complete = complete or not self._lacking[operation]
        return complete

    def empty(self) -> list[tuple[int, bool]]:
        """Take out the collected gradients, to be handed over."""
        waiting, self._waiting = self._waiting, []
        return waiting
