"""Cutting tensors: nothing is lost, nothing is sent twice, no piece is too large."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.core import Pieces, SubTask, label, partition
from bytelane.core.cutting import group_pieces, unit_pieces
from bytelane.errors import InputError

sizes = st.lists(st.integers(1, 1000), max_size=12)


@given(sizes, st.integers(1, 300))
def test_parts_cover_every_byte_once_and_in_order(tensor_bytes: list[int], part: int) -> None:
    pieces = partition(tensor_bytes, part)
    seen = [(t, b) for t, a, z in zip(*pieces[1:], strict=True) for b in range(a, z)]
    assert seen == [(t, b) for t, size in enumerate(tensor_bytes) for b in range(size)]


@given(sizes, st.integers(1, 300))
def test_only_the_last_part_of_a_tensor_is_smaller(tensor_bytes: list[int], part: int) -> None:
    pieces = partition(tensor_bytes, part)
    for tensor, size in enumerate(tensor_bytes):
        lengths = (pieces.stop - pieces.start)[pieces.tensor == tensor].tolist()
        assert lengths == [part] * (size // part) + ([size % part] if size % part else [])


@given(sizes)
def test_none_keeps_tensors_whole(tensor_bytes: list[int]) -> None:
    pieces = partition(tensor_bytes, None)
    assert pieces.stop.tolist() == tensor_bytes
    assert pieces.operation_count == len(tensor_bytes)


@given(sizes, st.integers(1, 300))
def test_rows_and_objects_say_the_same(tensor_bytes: list[int], part: int) -> None:
    pieces = partition(tensor_bytes, part)
    again = Pieces.of(pieces.sub_tasks())
    assert all(np.array_equal(a, b) for a, b in zip(pieces, again, strict=True))


def test_the_remainder_comes_last() -> None:
    assert partition([10, 3], 4).sub_tasks() == [
        (SubTask(0, 0, 4),),
        (SubTask(0, 4, 8),),
        (SubTask(0, 8, 10),),
        (SubTask(1, 0, 3),),
    ]


@given(sizes, st.data())
def test_groups_travel_together_whole(tensor_bytes: list[int], data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.integers(0, 3), min_size=len(tensor_bytes)))
    groups = [sorted(set(groups)).index(g) for g in groups][: len(tensor_bytes)]
    groups = [sorted(set(groups)).index(g) for g in groups]
    operations = group_pieces(tensor_bytes, groups).sub_tasks()
    assert len(operations) == len(set(groups))
    for number, parts in enumerate(operations):
        assert [p.tensor for p in parts] == [t for t, g in enumerate(groups) if g == number]
        assert all((p.start, p.stop) == (0, tensor_bytes[p.tensor]) for p in parts)


@given(sizes, st.integers(1, 300), st.randoms())
def test_units_are_all_bytes_in_order_cut_evenly(
    tensor_bytes: list[int], unit: int, random: Random
) -> None:
    order = list(range(len(tensor_bytes)))
    random.shuffle(order)
    operations = unit_pieces(tensor_bytes, order, unit).sub_tasks()
    sent = [(p.tensor, b) for parts in operations for p in parts for b in range(p.start, p.stop)]
    assert sent == [(t, b) for t in order for b in range(tensor_bytes[t])]
    full, rest = divmod(sum(tensor_bytes), unit)
    assert [sum(p.bytes for p in parts) for parts in operations] == [unit] * full + [rest] * (
        rest > 0
    )


@given(sizes, st.integers(1, 300), st.integers(1, 300), st.randoms())
def test_units_may_begin_small_and_double_until_they_are_full(
    tensor_bytes: list[int], unit: int, first: int, random: Random
) -> None:
    order = list(range(len(tensor_bytes)))
    random.shuffle(order)
    operations = unit_pieces(tensor_bytes, order, unit, first).sub_tasks()
    sent = [(p.tensor, b) for parts in operations for p in parts for b in range(p.start, p.stop)]
    assert sent == [(t, b) for t in order for b in range(tensor_bytes[t])]
    lengths = [sum(p.bytes for p in parts) for parts in operations]
    for k, length in enumerate(lengths):
        is_last = k == len(lengths) - 1
        wanted = min(unit, first * 2**k)
        assert length <= wanted if is_last else length == wanted


def test_groups_are_numbered_without_gaps() -> None:
    with pytest.raises(InputError, match="without gaps"):
        group_pieces([1, 2], [0, 2])


@pytest.mark.parametrize("part", [0, -4])
def test_an_empty_part_is_refused(part: int) -> None:
    with pytest.raises(InputError, match="cannot hold anything"):
        partition([10], part)
    with pytest.raises(InputError, match="cannot hold anything"):
        unit_pieces([10], [0], part)
    with pytest.raises(InputError, match="cannot hold anything"):
        unit_pieces([10], [0], 4, part)


@pytest.mark.parametrize(("start", "stop"), [(3, 3), (4, 2), (-1, 2)])
def test_an_empty_piece_is_refused(start: int, stop: int) -> None:
    with pytest.raises(InputError, match="not a piece"):
        SubTask(0, start, stop)


def test_labels_name_the_first_tensor() -> None:
    names, sizes = ["conv", "fc"], [100, 8 * 2**20]
    assert label([SubTask(0, 0, 100)], names, sizes) == "conv"
    assert label([SubTask(1, 4 * 2**20, 8 * 2**20)], names, sizes) == "fc@4 MiB"
    assert label([SubTask(0, 0, 100), SubTask(1, 0, 8)], names, sizes) == "conv + 1 more"
