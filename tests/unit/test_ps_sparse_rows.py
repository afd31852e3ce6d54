"""Row-sparse sums: a union of rows, each added in rank order; malformed rows are refused."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.errors import InputError
from bytelane.runtime.ps.frames import INDEX_BYTES
from bytelane.runtime.ps.round_sums import sum_in_order
from bytelane.runtime.ps.sparse_rows import Touched, cut_table, decode_rows, encode_rows, merge

ROWS, WIDTH = 12, 3
ROW_BYTES = 4 * WIDTH


@st.composite
def touched(draw: st.DrawFn) -> dict[int, list[float]]:
    """Return rows by index, as one rank has touched them."""
    numbers = st.lists(st.floats(width=32, allow_nan=False), min_size=WIDTH, max_size=WIDTH)
    return draw(st.dictionaries(st.integers(0, ROWS - 1), numbers))


def as_touched(rows: dict[int, list[float]]) -> Touched:
    indices = sorted(rows)
    values = np.array([rows[index] for index in indices], dtype="<f4").reshape(-1, WIDTH)
    return Touched(np.array(indices, dtype=np.int64), values.view(np.uint8))


@given(st.lists(touched(), min_size=1, max_size=4))
def test_a_merged_row_is_the_sum_in_rank_order_of_the_ranks_that_have_it(
    ranks: list[dict[int, list[float]]],
) -> None:
    merged = merge([as_touched(one) for one in ranks], "float32", sum_in_order)
    assert list(merged.indices) == sorted(set().union(*ranks))
    for index, row in zip(merged.indices, merged.rows, strict=True):
        with np.errstate(all="ignore"):
            total: np.ndarray | None = None
            for one in ranks:
                if index in one:
                    own = np.array(one[index], dtype=np.float32)
                    total = own if total is None else total + own
        assert total is not None
        assert row.tobytes() == total.tobytes()


@given(touched())
def test_rows_survive_their_travel(rows: dict[int, list[float]]) -> None:
    sent = as_touched(rows)
    found = decode_rows(encode_rows(sent), ROWS, ROW_BYTES)
    assert found is not None
    assert found.indices.tolist() == sent.indices.tolist()
    assert found.rows.tobytes() == sent.rows.tobytes()


@pytest.mark.parametrize(
    "indices", [[-1], [ROWS], [3, 3], [4, 2], [0, -(2**63)], [2**63 - 1], [-(2**63), 2**63 - 1]]
)
def test_indices_outside_the_table_or_not_ascending_are_refused(indices: list[int]) -> None:
    rows = np.zeros((len(indices), ROW_BYTES), dtype=np.uint8)
    payload = encode_rows(Touched(np.array(indices, dtype=np.int64), rows))
    assert decode_rows(payload, ROWS, ROW_BYTES) is None


def test_noise_is_refused_or_lies_within_the_table() -> None:
    chance = random.Random(3)
    for _ in range(10_000):
        count = chance.randrange(4)
        noise = chance.randbytes(count * (INDEX_BYTES + ROW_BYTES) + chance.choice([0, 0, 1, 7]))
        if (found := decode_rows(noise, ROWS, ROW_BYTES)) is not None:
            assert all(0 <= index < ROWS for index in found.indices)


@given(st.integers(1, 200), st.integers(1, 50), st.integers(60, 500))
def test_a_table_is_cut_into_ranges_that_fit_into_a_message(
    rows: int, row_bytes: int, most_bytes: int
) -> None:
    ranges = list(cut_table(rows * row_bytes, row_bytes, most_bytes))
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == rows * row_bytes
    for start, stop in ranges:
        assert (stop - start) % row_bytes == 0
        assert (stop - start) // row_bytes * (INDEX_BYTES + row_bytes) <= most_bytes


def test_a_row_that_no_message_can_carry_is_a_sentence() -> None:
    with pytest.raises(InputError, match="build it with sparse=False"):
        list(cut_table(1000, 100, 50))
