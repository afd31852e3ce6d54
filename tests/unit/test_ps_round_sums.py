"""A server's sums: in rank order whatever the order of arrival, each push once, nothing kept."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.runtime.ps.frames import ELEMENT_BYTES, Row
from bytelane.runtime.ps.round_sums import Misplaced, RoundSums, Summed, sum_in_order

NUMPY_KINDS = [kind for kind in ELEMENT_BYTES if kind != "bfloat16"]
FLOATS = [Row("float32", 8, 0), Row("float32", 4, 1)]


def payload(*values: float, kind: str = "float32") -> bytes:
    return np.array(values, dtype=kind).tobytes()


def random_bytes(data: st.DataObject, kind: str, elements: int) -> bytes:
    """Return any bits at all: they hold infinities, numbers that are none, and the least ones."""
    return data.draw(st.binary(min_size=(n := elements * ELEMENT_BYTES[kind]), max_size=n))


def numpy_sum(payloads: Sequence[bytes], kind: str) -> np.ndarray[Any, Any]:
    arrays = [np.frombuffer(one, dtype=kind) for one in payloads]
    total = arrays[0].copy()
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            total = total + array
    return total


@given(st.data(), st.sampled_from(NUMPY_KINDS), st.integers(1, 4), st.integers(1, 9))
def test_a_sum_is_numpys_sum_in_rank_order_whatever_the_order_of_arrival(
    data: st.DataObject, kind: Any, world: int, elements: int
) -> None:
    sent = [random_bytes(data, kind, elements) for _ in range(world)]
    sums = RoundSums([Row(kind, elements * ELEMENT_BYTES[kind], 0)], world)
    arrival = data.draw(st.permutations(range(world)))
    results = [sums.push(7, rank, 0, sent[rank], b"\1") for rank in arrival]
    assert results[:-1] == [None] * (world - 1)
    assert isinstance(results[-1], Summed)
    got = np.frombuffer(results[-1].payload, dtype=kind)
    np.testing.assert_array_equal(got, numpy_sum(sent, kind))


@given(st.lists(st.lists(st.integers(0, 2**16 - 1), min_size=3, max_size=3), min_size=2))
def test_bfloat16_is_added_in_float32_and_rounded_to_the_nearest_even_each_time(
    ranks: list[list[int]],
) -> None:
    def value(bits: int) -> np.float32:
        return np.array([bits << 16], dtype=np.uint32).view(np.float32)[0]

    def nearest(exact: np.float32) -> int:
        """Find it among the two neighbours, without bit tricks."""
        low = int(np.array([exact], dtype=np.float32).view(np.uint32)[0]) >> 16
        below, above = value(low), value(low + 1) if low + 1 < 2**16 else value(low)
        if exact == below:
            return low
        if np.isinf(above):  # what would be the next number if the exponent went on
            above = np.float64(2.0**128) * np.sign(np.float64(below))
        down, up = abs(np.float64(exact) - below), abs(np.float64(above) - exact)
        return low if down < up or (down == up and low % 2 == 0) else low + 1

    sent = [np.array(bits, dtype=np.uint16).tobytes() for bits in ranks]
    got = np.frombuffer(sum_in_order(sent, "bfloat16"), dtype=np.uint16)
    for place, result in enumerate(got.tolist()):
        with np.errstate(all="ignore"):
            total = ranks[0][place]
            for other in ranks[1:]:
                exact = value(total) + value(other[place])
                total = 0x7FC0 if np.isnan(exact) else nearest(exact)
        assert result == total


def test_three_ranks_are_added_from_the_left() -> None:
    values = (1e8, -1e8, 1.0)
    sums = RoundSums([Row("float32", 4, 0)], 3)
    for rank in (2, 1):
        sums.push(0, rank, 0, payload(values[rank]), b"\0")
    last = sums.push(0, 0, 0, payload(values[0]), b"\0")
    assert isinstance(last, Summed)
    assert bytes(last.payload) == payload(1.0)  # 1e8 + (-1e8 + 1) would be 0


def test_used_flags_are_joined_and_only_the_signal_of_rank_0_counts() -> None:
    sums = RoundSums([Row("int64", 8, 0, parts=3)], 2)
    sums.push(0, 1, 0, payload(1, kind="int64"), b"\0\1\0", signal=5)
    result = sums.push(0, 0, 0, payload(2, kind="int64"), b"\1\0\0", signal=3)
    assert result == Summed(0, 0, memoryview(payload(3, kind="int64")), b"\1\1\0", 3)


def test_a_sum_is_kept_until_all_ranks_have_acknowledged_it() -> None:
    sums = RoundSums(FLOATS, 2)
    for rank in (0, 1):
        sums.push(0, rank, 0, payload(1, 2), b"\1")
    assert sums.acknowledge(0, 1, 0) is None
    assert sums.find(0, 0) is not None
    assert sums.acknowledge(0, 0, 0) is None
    assert sums.find(0, 0) is None
    assert not sums.is_idle  # operation 1 of this round is still to come
    for rank in (0, 1):
        sums.push(0, rank, 1, payload(1), b"\1")
        assert not sums.is_idle
    for rank in (0, 1):
        sums.acknowledge(0, rank, 1)
    assert sums.is_idle


def test_the_next_rounds_may_begin_while_acknowledgements_are_on_their_way_but_not_all() -> None:
    sums = RoundSums([Row("float32", 4, 0)], 2)
    for number, rank in itertools.product((3, 4, 5), (0, 1)):
        assert not isinstance(sums.push(number, rank, 0, payload(number), b"\1"), Misplaced)
    assert isinstance(sums.push(6, 0, 0, payload(6), b"\1"), Misplaced)
    for rank in (0, 1):
        assert sums.acknowledge(3, rank, 0) is None
    assert sums.push(6, 0, 0, payload(6), b"\1") is None
    assert isinstance(sums.push(3, 0, 0, payload(3), b"\1"), Misplaced)


def test_the_straggler_is_the_rank_that_has_pushed_least() -> None:
    sums = RoundSums(FLOATS, 3)
    sums.push(0, 2, 0, payload(1, 2), b"\1")
    sums.push(0, 0, 1, payload(1), b"\1")
    assert sums.pushed_bytes == [4, 0, 8]


MISTAKES = {
    "twice": (0, 0, 0, payload(9, 9), b"\1"),
    "another operation": (0, 0, 2, payload(9), b"\1"),
    "a negative operation": (0, 0, -1, payload(9), b"\1"),
    "another rank": (0, 2, 0, payload(9, 9), b"\1"),
    "too short": (0, 1, 0, payload(9), b"\1"),
    "too long": (0, 1, 0, payload(9, 9, 9), b"\1"),
    "flags that there are not": (0, 1, 0, payload(9, 9), b"\1\1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_push_that_does_not_fit_is_refused_and_nothing_happens(mistake: str) -> None:
    sums = RoundSums(FLOATS, 2)
    sums.push(0, 0, 0, payload(1, 2), b"\0")
    assert isinstance(sums.push(*MISTAKES[mistake]), Misplaced)
    result = sums.push(0, 1, 0, payload(10, 20), b"\0")
    assert result == Summed(0, 0, memoryview(payload(11, 22)), b"\0", 0)
    assert sums.pushed_bytes == [8, 8]


def test_an_acknowledgement_that_does_not_fit_is_refused_and_nothing_happens() -> None:
    sums = RoundSums([Row("float32", 4, 0)], 2)
    sums.push(0, 0, 0, payload(1), b"\1")
    for wrong in ((0, 0, 0), (1, 0, 0), (0, 0, 1), (0, 2, 0)):
        assert isinstance(sums.acknowledge(*wrong), Misplaced)
    sums.push(0, 1, 0, payload(1), b"\1")
    assert sums.acknowledge(0, 0, 0) is None
    assert isinstance(sums.acknowledge(0, 0, 0), Misplaced)
    assert sums.find(0, 0) is not None


@given(st.data(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_every_operation_of_every_round_is_summed_once_and_then_forgotten(
    data: st.DataObject, world: int, operations: int, rounds: int
) -> None:
    """Pushes of all ranks arrive in any order; each acknowledges after it was summed."""
    sums = RoundSums([Row("int32", 4, k) for k in range(operations)], world)
    for number in range(rounds):
        arriving = list(itertools.product(range(world), range(operations)))
        summed = []
        for rank, operation in data.draw(st.permutations(arriving)):
            value = payload(number + 10 * rank + 100 * operation, kind="int32")
            result = sums.push(number, rank, operation, value, b"\1")
            assert not isinstance(result, Misplaced)
            if result is not None:
                summed.append(result)
        assert sorted(one.operation for one in summed) == list(range(operations))
        for one in summed:
            (total,) = np.frombuffer(one.payload, dtype=np.int32)
            assert total == sum(number + 10 * r + 100 * one.operation for r in range(world))
        for rank, operation in data.draw(st.permutations(arriving)):
            assert sums.acknowledge(number, rank, operation) is None
        assert sums.is_idle
