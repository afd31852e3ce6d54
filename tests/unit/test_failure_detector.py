"""Who is lost: messages and ticks in, findings out. No process, no clock."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bytelane.runtime.liveness.failure_detector import (
    AWAKE_S,
    GATHER_S,
    KNOCK_S,
    REPLACED_S,
    FailureDetector,
    Finding,
    Limits,
    Loss,
)
from bytelane.runtime.liveness.message import Answer, Fault, Kind, Message, State
from bytelane.runtime.liveness.peer_status import QUIET_S, PeerStatus, waiting_line
from bytelane.runtime.liveness.rank_names import name_ranks

LIMITS = Limits(frozen_s=5.0, silent_s=10.0, lost_s=60.0)
TICK_S = 0.25


class World:
    """A detector of rank 0's sentinel, with a clock that the test turns."""

    def __init__(self, peers: int = 2, limits: Limits = LIMITS) -> None:
        self.detector = FailureDetector(0, limits, 0.0)
        for rank in range(1, peers + 1):
            self.detector.add(rank, f"process {rank}")
        self.now_s = 0.0
        self.number = 0
        self.state = State.RUNNING
        self.progress = 0
        self.finished = 0
        self.found: list[Finding] = []

    def hear(self, kind: Kind, rank: int = 1, **said: object) -> list[Finding]:
        self.number += 1
        return self.note(self.detector.hear(Message(kind, rank, self.number, **said)))  # type: ignore[arg-type]

    def beat(self, rank: int = 1, state: State = State.RUNNING, stopped_s: float = 0.0) -> None:
        self.hear(Kind.BEAT, rank, state=state, stopped_ms=int(stopped_s * 1000))

    def tick(self, seconds: float = TICK_S) -> list[Finding]:
        self.now_s += seconds
        found = self.detector.tick(self.state, self.progress, self.now_s, self.finished)
        return self.note(found)

    def wait(self, seconds: float, *beating: int) -> list[Finding]:
        """Let time pass, in ticks, while these peers are heard."""
        found = []
        for _ in range(round(seconds / TICK_S)):
            for rank in beating:
                self.beat(rank)
            found += self.tick()
        return found

    def note(self, found: list[Finding]) -> list[Finding]:
        self.found += found
        return found

    @property
    def losses(self) -> list[Loss]:
        return [finding for finding in self.found if isinstance(finding, Loss)]


# Endings


def test_a_death_is_a_loss_at_once() -> None:
    assert World().hear(Kind.DIED) == [Loss(Fault.LOST, 1, "rank 1 has died (process 1)")]


def test_a_failure_repeats_its_reason() -> None:
    found = World().hear(Kind.FAILED, 2, reason="ValueError: no")
    assert found == [Loss(Fault.FAILED, 2, "rank 2 failed: ValueError: no")]


def test_after_the_first_loss_nothing_is_said() -> None:
    world = World(3)
    world.wait(1, 3)
    assert world.hear(Kind.FAILED, 2)
    assert world.hear(Kind.DIED, 1) == []
    assert world.wait(100) == []  # the third is silent, too


def test_a_peer_that_left_in_order_is_no_loss() -> None:
    world = World()
    world.progress = 7
    assert world.hear(Kind.LEFT, progress=7) == []
    assert world.wait(100, 2) == []


def test_launching_what_a_peer_that_left_never_launched_is_a_loss() -> None:
    world = World()
    world.hear(Kind.LEFT, progress=7)
    world.progress = 8
    assert world.tick() == [Loss(Fault.LOST, 1, "rank 1 has left: its script ended")]


def test_after_the_last_message_nothing_is_heard_any_more() -> None:
    world = World()
    world.hear(Kind.LEFT, progress=7)
    assert world.hear(Kind.DIED) == []
    assert world.detector.last(1).kind is Kind.LEFT


# Freezing


def test_stopped_for_long_is_frozen() -> None:
    world = World()
    world.wait(5, 1, 2)
    world.beat(1, State.STOPPED, 4.9)
    assert world.losses == []
    world.beat(1, State.STOPPED, 5.9)
    text = "rank 1 has been stopped by a signal for 6 s (process 1)"
    assert world.losses == [Loss(Fault.FROZEN, 1, text)]


def test_in_the_hands_of_a_debugger_is_not_frozen() -> None:
    world = World()
    world.wait(5, 1, 2)
    world.beat(1, State.TRACED, 1000.0)
    assert world.found == []


def test_while_we_are_stopped_ourselves_nobody_is_frozen() -> None:
    """Ctrl-Z stops all ranks of a host; what counts is who does not go on with us."""
    world = World()
    world.wait(5, 1, 2)
    world.state = State.STOPPED
    for second in range(60):
        world.beat(1, State.STOPPED, second)
        world.wait(1, 2)
    world.state = State.RUNNING
    world.tick()
    world.beat(1, State.STOPPED, 60)  # said before it was continued, too
    world.tick()
    world.wait(30, 1, 2)
    assert world.found == []


def test_who_does_not_go_on_with_us_is_frozen() -> None:
    world = World()
    world.state = State.STOPPED
    world.wait(5, 1, 2)
    world.state = State.RUNNING
    world.beat(1, State.STOPPED, 60)
    assert world.wait(AWAKE_S - TICK_S, 2) == []
    assert [loss.fault for loss in world.wait(2 * TICK_S, 2) if isinstance(loss, Loss)] == [
        Fault.FROZEN
    ]


# Silence


def test_silence_is_a_line_and_a_long_one_a_loss() -> None:
    world = World()
    world.wait(1, 1, 2)
    assert world.wait(10.5, 2) == []
    line = "nothing was heard of rank 1 for 10 s; after 60 s that is an error"
    assert world.wait(1, 2) == [line]
    assert world.wait(48, 2) == []
    text = "rank 1 has not been heard of for 60 s: its host or network is gone (process 1)"
    assert world.wait(1, 2) == [Loss(Fault.LOST, 1, text)]


def test_a_link_that_was_cut_for_twenty_seconds_is_survived() -> None:
    world = World()
    world.wait(1, 1, 2)
    world.wait(20)
    world.wait(100, 1, 2)
    assert world.found == [
        "nothing was heard of ranks 1 and 2 for 10 s; after 60 s that is an error",
        "now heard of ranks 1 and 2, after 20 s of silence",
    ]


def test_a_peer_that_was_never_heard_is_no_loss() -> None:
    """A network that lets no datagrams through must not end a training that works."""
    world = World(1)
    world.wait(1000)
    assert world.losses == []
    assert len(world.found) == 1
    assert "nothing was ever heard of rank 1" in str(world.found[0])


def test_time_in_which_we_did_not_listen_is_nobodys_silence() -> None:
    world = World()
    world.wait(1, 1, 2)
    for _ in range(5):
        world.tick(1000.0)
    assert world.found == []


def test_who_listens_is_waited_for_at_a_farewell() -> None:
    world = World(4)
    world.wait(1, 1, 2, 3, 4)
    world.hear(Kind.LEFT, 2)
    world.wait(11, 1, 4)
    assert world.detector.listeners() == {1, 4}
    world.beat(3)
    assert world.detector.listeners() == {1, 3, 4}


# Knocking at who has fallen silent


def probe(world: World, answer: Answer, seconds: float) -> None:
    """Get this answer of the first peer, once a second, while the second is heard."""
    for _ in range(round(seconds)):
        for rank in world.detector.doubtful():
            world.note(world.detector.hear_answer(rank, answer))
        world.wait(1, 2)


def test_who_has_fallen_silent_is_knocked_at() -> None:
    world = World()
    world.wait(1, 1, 2)
    world.wait(KNOCK_S - 1, 2)
    assert world.detector.doubtful() == []
    world.wait(1, 2)
    assert world.detector.doubtful() == [1]
    world.beat(1)
    assert world.detector.doubtful() == []


def test_a_process_that_is_gone_with_its_sentinel_has_died() -> None:
    world = World()
    world.wait(1, 1, 2)
    probe(world, Answer.GONE, KNOCK_S + 2)
    text = "rank 1 has died, and its sentinel too (process 1)"
    assert world.losses == [Loss(Fault.LOST, 1, text)]


def test_a_process_that_is_there_and_says_nothing_is_frozen() -> None:
    world = World()
    world.wait(1, 1, 2)
    probe(world, Answer.THERE, LIMITS.frozen_s + REPLACED_S - 1)
    assert world.found == []
    probe(world, Answer.THERE, 2)
    text = "rank 1 has said nothing for 8 s, and its host answers: it is stopped (process 1)"
    assert world.losses == [Loss(Fault.FROZEN, 1, text)]


@pytest.mark.parametrize("is_near", [True, False])
def test_who_was_never_heard_is_lost_only_on_this_host(is_near: bool) -> None:
    """Where a network may stand between us it may let no datagrams through."""
    world = World()
    world.detector.add(1, "process 1", is_near=is_near)
    world.wait(1, 2)
    probe(world, Answer.THERE, LIMITS.frozen_s + REPLACED_S + 1)
    assert bool(world.losses) == is_near


def test_a_process_that_goes_on_in_time_is_not_frozen() -> None:
    world = World()
    world.wait(1, 1, 2)
    probe(world, Answer.THERE, LIMITS.frozen_s + REPLACED_S - 1)
    world.wait(20, 1, 2)
    assert world.found == []


def test_silence_is_no_loss_while_operations_end() -> None:
    """Then its rank is well, and only its sentinel is lost."""
    world = World()
    world.wait(1, 1, 2)
    for _ in range(100):
        world.finished += 1
        probe(world, Answer.THERE, 1)
    assert world.losses == []
    probe(world, Answer.THERE, LIMITS.frozen_s + REPLACED_S + 1)
    assert [loss.fault for loss in world.losses] == [Fault.FROZEN]


def test_an_answer_of_the_past_does_not_count() -> None:
    world = World()
    world.wait(1, 1, 2)
    probe(world, Answer.THERE, LIMITS.frozen_s)
    world.beat(1)
    world.wait(LIMITS.frozen_s + REPLACED_S + 1, 2)
    assert world.losses == []


# What peers have lost


def test_what_a_peer_has_lost_is_lost_here_too() -> None:
    text = "rank 2 has died (process 7)"
    found = World().hear(Kind.FAILED, 1, reason=text, fault=Fault.LOST, about=2)
    assert found == [Loss(Fault.LOST, 2, text)]


def test_who_was_given_up_hears_why() -> None:
    text = "rank 0 has been stopped by a signal for 6 s"
    found = World().hear(Kind.FAILED, 1, reason=text, fault=Fault.FROZEN, about=0)
    assert found == [Loss(Fault.FAILED, 1, f"rank 1 has given up: {text}")]


# Whatever happens

kinds = st.sampled_from(Kind)
events = st.one_of(
    st.floats(0.0, 5.0).map(lambda seconds: ("tick", seconds)),
    st.sampled_from(State).map(lambda state: ("own", state)),
    st.tuples(
        st.just("hear"),
        st.builds(
            Message,
            kind=kinds,
            rank=st.integers(0, 5),
            number=st.integers(0, 50),
            progress=st.integers(0, 5),
            state=st.sampled_from(State),
            stopped_ms=st.integers(0, 10_000),
        ),
    ),
)


@given(st.lists(events, max_size=60), st.integers(1, 4))
def test_there_is_at_most_one_loss_and_nothing_after_it(history: list[tuple], peers: int) -> None:  # type: ignore[type-arg]
    world = World(peers)
    for what, value in history:
        if what == "tick":
            world.tick(value)
        elif what == "own":
            world.state = value
        else:
            world.note(world.detector.hear(value))
    assert len(world.losses) <= 1
    if world.losses:
        assert world.found[-1] is world.losses[0] is world.detector.loss
        assert world.losses[0].rank != 0


well = st.sampled_from([state for state in State if state is not State.STOPPED])
ticks = st.lists(st.floats(0.0, 100.0), max_size=9)


@given(st.lists(st.tuples(well, ticks), max_size=20))
def test_a_peer_that_is_heard_and_not_stopped_is_never_blamed(
    history: list[tuple[State, list[float]]],
) -> None:
    """However slow it is, whatever the kernel says of it, and in whatever order that arrives."""
    world = World(1)
    for state, ticks_s in history:
        world.beat(1, state)
        for tick_s in ticks_s:
            world.tick(tick_s)  # counts for a second at most
    assert world.found == []


@given(st.floats(0.0, 120.0))
def test_silence_is_judged_by_its_length(seconds: float) -> None:
    assume(min(abs(seconds - limit_s) for limit_s in (11.0, 60.0)) > TICK_S)
    world = World(1)
    world.beat()
    world.wait(seconds)
    assert bool(world.found) == (seconds > LIMITS.silent_s + GATHER_S)
    assert bool(world.losses) == (seconds > LIMITS.lost_s)


@given(st.lists(st.floats(0.0, 20.0), max_size=20))
def test_stopping_is_judged_by_its_length(stops_s: list[float]) -> None:
    world = World(1)
    world.wait(AWAKE_S, 1)
    for stopped_s in stops_s:
        world.beat(1, State.STOPPED, stopped_s)
        world.beat(1, State.SLEEPING)
    assert bool(world.losses) == any(int(s * 1000) >= 5000 for s in stops_s)


@given(st.permutations(range(1, 9)), st.integers(1, 8))
def test_datagrams_that_overtake_each_other_leave_the_newest(order: list[int], last: int) -> None:
    detector = FailureDetector(0, LIMITS, 0.0)
    detector.add(1, "")
    heard = order[: order.index(last) + 1]
    for number in heard * 2:
        detector.hear(Message(Kind.BEAT, 1, number, progress=number))
    assert detector.last(1).progress == max(heard)


# Lines


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        ([3], "rank 3"),
        ([3, 5], "ranks 3 and 5"),
        ([1, 2, 3, 4], "ranks 1, 2, 3 and 4"),
        (range(1, 64), "ranks 1, 2, 3, 4 and 59 more"),
    ],
)
def test_ranks_have_names(ranks: list[int], names: str) -> None:
    assert name_ranks(ranks) == names


def status(
    rank: int = 2,
    state: State = State.RUNNING,
    kind: Kind = Kind.BEAT,
    silent_s: float | None = 0.5,
) -> PeerStatus:
    return PeerStatus(rank, 10, state, kind, silent_s)


@pytest.mark.parametrize(
    ("behind", "line"),
    [
        ([], "waiting for 60 s; no rank is behind, so the network is slow"),
        ([status()], "waiting for rank 2 for 60 s; it is alive (running)"),
        ([status(state=State.UNKNOWN)], "waiting for rank 2 for 60 s; it is alive"),
        ([status(state=State.STOPPED)], "waiting for rank 2 for 60 s; it is stopped by a signal"),
        ([status(state=State.TRACED)], "waiting for rank 2 for 60 s; it is held by a debugger"),
        ([status(kind=Kind.LEFT)], "waiting for rank 2 for 60 s; it has left"),
        ([status(silent_s=None)], "waiting for rank 2 for 60 s; it was never heard of"),
        (
            [status(silent_s=QUIET_S)],
            "waiting for rank 2 for 60 s; it has not been heard of for 5 s",
        ),
        (
            [status(1), status(3, State.SLEEPING)],
            "waiting for ranks 1 and 3 for 60 s; "
            "rank 1 is alive (running), rank 3 is alive (sleeping)",
        ),
    ],
)
def test_a_line_names_who_is_waited_for(behind: list[PeerStatus], line: str) -> None:
    assert waiting_line(behind, 60.0) == line
