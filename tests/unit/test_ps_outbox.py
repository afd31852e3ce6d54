"""What a server sends next: the most urgent sum, per worker, within acknowledged credit."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.runtime.ps.frames import Row
from bytelane.runtime.ps.outbox import Outbox, Send
from bytelane.runtime.ps.round_sums import Misplaced

EVEN = [0, 0, 0]


def rows(*places: int, size: int = 4) -> list[Row]:
    return [Row("float32", size, place) for place in places]


def test_without_a_limit_everything_goes_to_everyone_at_once() -> None:
    outbox = Outbox(rows(0, 1), 2)
    assert outbox.summed(0, 1, EVEN) == [Send(0, 0, 1), Send(1, 0, 1)]
    assert outbox.summed(0, 0, EVEN) == [Send(0, 0, 0), Send(1, 0, 0)]


def test_the_most_urgent_sum_overtakes_those_that_came_before_it() -> None:
    outbox = Outbox(rows(2, 1, 0), 1, credit_bytes=4)
    assert outbox.summed(0, 0, EVEN) == [Send(0, 0, 0)]
    assert outbox.summed(0, 1, EVEN) == []
    assert outbox.summed(0, 2, EVEN) == []
    assert outbox.acknowledged(0, 0, 0) == [Send(0, 0, 2)]
    assert outbox.acknowledged(0, 0, 2) == [Send(0, 0, 1)]


def test_a_worker_that_acknowledges_nothing_delays_nobody_else() -> None:
    outbox = Outbox(rows(0, 1), 2, credit_bytes=4)
    assert outbox.summed(0, 0, EVEN) == [Send(0, 0, 0), Send(1, 0, 0)]
    assert outbox.summed(0, 1, EVEN) == []
    assert outbox.acknowledged(1, 0, 0) == [Send(1, 0, 1)]


def test_sums_of_the_next_round_wait_until_a_worker_has_acknowledged_all_of_this_one() -> None:
    outbox = Outbox(rows(0, 1), 1)
    outbox.summed(4, 0, EVEN)
    outbox.summed(4, 1, EVEN)
    assert outbox.summed(5, 0, EVEN) == []
    assert outbox.acknowledged(0, 4, 1) == []
    assert outbox.acknowledged(0, 4, 0) == [Send(0, 5, 0)]
    assert outbox.summed(5, 1, EVEN) == [Send(0, 5, 1)]


@pytest.mark.parametrize("wrong", [(0, 0, 1), (0, 1, 0), (0, 0, 7)])
def test_an_acknowledgement_of_what_was_not_sent_is_refused(wrong: tuple[int, int, int]) -> None:
    outbox = Outbox(rows(0, 1), 1, credit_bytes=4)
    outbox.summed(0, 0, EVEN)
    outbox.summed(0, 1, EVEN)
    assert isinstance(outbox.acknowledged(*wrong), Misplaced)
    assert outbox.in_flight_bytes(0) == 4


def test_an_acknowledgement_counts_once() -> None:
    outbox = Outbox(rows(0, 1), 1, credit_bytes=4)
    outbox.summed(0, 0, EVEN)
    assert outbox.acknowledged(0, 0, 0) == []
    assert isinstance(outbox.acknowledged(0, 0, 0), Misplaced)


def test_the_straggler_goes_first_where_that_is_asked_for() -> None:
    behind = [30, 10, 20]
    plain, fair = Outbox(rows(0), 3), Outbox(rows(0), 3, straggler_first=True)
    assert [send.worker for send in plain.summed(0, 0, behind)] == [0, 1, 2]
    assert [send.worker for send in fair.summed(0, 0, behind)] == [1, 2, 0]


def test_a_server_may_have_nothing_to_send() -> None:
    assert Outbox([], 2, credit_bytes=1).in_flight_bytes(1) == 0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=8),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 20)),
    st.randoms(use_true_random=False),
)
def test_every_worker_gets_every_sum_once_in_every_round_and_the_window_holds(
    table: list[tuple[int, int]], workers: int, credit: int | None, chance: random.Random
) -> None:
    given_rows = [Row("int8", size, place) for place, size in table]
    outbox = Outbox(given_rows, workers, credit)
    most = float("inf") if credit is None else credit + max(row.bytes for row in given_rows) - 1
    rounds = 3
    for_later = [
        (n, k) for n in range(rounds) for k in chance.sample(range(len(table)), len(table))
    ]
    in_flight: list[Send] = []
    sent: list[Send] = []

    def send(sends: list[Send] | Misplaced) -> None:
        assert not isinstance(sends, Misplaced)
        in_flight.extend(sends)
        sent.extend(sends)
        for worker in range(workers):
            own = sum(given_rows[one.operation].bytes for one in in_flight if one.worker == worker)
            assert own == outbox.in_flight_bytes(worker) <= most

    while for_later or in_flight:
        if for_later and (not in_flight or chance.random() < 0.5):
            number, operation = for_later.pop(0)
            send(outbox.summed(number, operation, [0] * workers))
        else:
            over = in_flight.pop(chance.randrange(len(in_flight)))
            send(outbox.acknowledged(over.worker, over.round, over.operation))
    assert sorted(sent) == [
        Send(w, n, k) for w in range(workers) for n in range(rounds) for k in range(len(table))
    ]
    for worker in range(workers):  # rounds do not mix
        numbers = [one.round for one in sent if one.worker == worker]
        assert numbers == sorted(numbers)
