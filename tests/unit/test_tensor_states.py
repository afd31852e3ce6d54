"""The table of transitions, taken literally: what it holds happens, everything else is refused."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.errors import IllegalEvent
from bytelane.runtime.sync.tensor_states import TRANSITIONS, Happening, State, Tensors

# How to get there, by what happens to a fresh tensor.
WAYS: dict[State, list[Happening]] = {State.IDLE: []}
while len(WAYS) < len(State):
    WAYS |= {
        following: [*way, what]
        for state, way in WAYS.items()
        for what, following in TRANSITIONS[state].items()
        if following not in WAYS
    }


def brought_to(state: State) -> Tensors:
    tensors = Tensors(2)
    for what in WAYS[state]:
        tensors.move(what, 0)
    assert tensors.state(0) is state
    return tensors


@pytest.mark.parametrize(("state", "what"), [*product(State, Happening)])
def test_what_is_in_the_table_happens_and_what_is_not_changes_nothing(
    state: State, what: Happening
) -> None:
    tensors = brought_to(state)
    if what in TRANSITIONS[state]:
        tensors.move(what, 0)
        assert tensors.state(0) is TRANSITIONS[state][what]
        return
    before = contents(tensors)
    with pytest.raises(IllegalEvent, match=f"tensor 0 is {state.name}: it cannot"):
        tensors.move(what, 0)
    assert contents(tensors) == before


def contents(tensors: Tensors) -> tuple[object, ...]:
    states = [tensors.state(tensor) for tensor in range(len(tensors))]
    return states, {*tensors.missing}, {*tensors.in_flight}, {*tensors.owed}


@given(st.lists(st.tuples(st.sampled_from(Happening), st.integers(0, 3)), max_size=60))
def test_the_sets_are_always_those_of_the_states(events: list[tuple[Happening, int]]) -> None:
    tensors = Tensors(4, local=[1])
    for what, tensor in events:
        if what in TRANSITIONS[tensors.state(tensor)]:
            tensors.move(what, tensor)
    by_state = {t: tensors.state(t) for t in range(4)}
    groups = {
        "missing": {State.IDLE, State.LOCAL},
        "in_flight": {State.COLLECTED, State.IN_FLIGHT, State.DISCARDED},
        "owed": {State.OWED, State.OWED_AND_DISCARDED},
    }
    for name, states in groups.items():
        assert getattr(tensors, name) == {t for t, state in by_state.items() if state in states}
    settled = {State.SETTLED, State.SETTLED_AND_LOCAL}
    assert tensors.are_settled == (set(by_state.values()) <= settled)
    for tensor, state in by_state.items():
        assert tensors.is_local(tensor) == ("LOCAL" in state.name)
        assert tensors.is_discarded(tensor) == ("DISCARDED" in state.name)


def test_if_one_refuses_nothing_happens_to_any() -> None:
    tensors = Tensors(3)
    tensors.move(Happening.COLLECT, 2)
    before = contents(tensors)
    with pytest.raises(IllegalEvent, match="tensor 2 is COLLECTED"):
        tensors.move_all(Happening.COLLECT, range(3))
    assert contents(tensors) == before


def test_a_round_that_is_over_leaves_what_was_added_here() -> None:
    tensors = Tensors(2)
    for what in WAYS[State.SETTLED_AND_LOCAL]:
        tensors.move(what, 0)
    with pytest.raises(IllegalEvent):
        tensors.close()
    for what in WAYS[State.SETTLED]:
        tensors.move(what, 1)
    tensors.close()
    assert [tensors.state(0), tensors.state(1)] == [State.LOCAL, State.IDLE]
    assert tensors.missing == {0, 1}


def test_every_state_can_be_left_and_a_round_can_always_end() -> None:
    for state in State:
        reached = {state}
        while any(new := {f for s in reached for f in TRANSITIONS[s].values()} - reached):
            reached |= new
        assert State.SETTLED in reached
        assert State.IDLE in reached
