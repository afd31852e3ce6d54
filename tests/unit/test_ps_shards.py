"""Which server owns which bytes: every byte once, the same everywhere, and balanced."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.core import SubTask
from bytelane.errors import InputError
from bytelane.runtime.ps.shards import CHUNK_BYTES, Shards

sizes = st.lists(st.integers(1, 5 * CHUNK_BYTES), max_size=8)
counts = st.integers(1, 5)
partitions = st.none() | st.integers(1, 3 * CHUNK_BYTES)


def owned(shards: Shards) -> list[tuple[SubTask, int]]:
    return sorted((run, s) for s in range(shards.servers) for run in shards.runs_of(s))


@given(sizes, counts, partitions)
def test_every_byte_has_exactly_one_owner(
    tensor_bytes: list[int], servers: int, partition: int | None
) -> None:
    shards = Shards.spread(tensor_bytes, servers, partition)
    reached = [0] * len(tensor_bytes)
    for run, server in owned(shards):
        assert run.start == reached[run.tensor]
        assert run.start % CHUNK_BYTES == 0
        assert shards.owner(run.tensor, run.start) == server
        assert shards.owner(run.tensor, run.stop - 1) == server
        reached[run.tensor] = run.stop
    assert reached == tensor_bytes


@given(sizes, counts, partitions)
def test_no_server_has_more_than_its_share_and_one_run(
    tensor_bytes: list[int], servers: int, partition: int | None
) -> None:
    shards = Shards.spread(tensor_bytes, servers, partition)
    largest = max((run.bytes for run, _ in owned(shards)), default=0)
    for server in range(servers):
        load = sum(run.bytes for run in shards.runs_of(server))
        assert load <= -(-sum(tensor_bytes) // servers) + largest


@given(sizes, counts, partitions)
def test_equal_arguments_give_equal_shards(
    tensor_bytes: list[int], servers: int, partition: int | None
) -> None:
    again = Shards.spread(tuple(tensor_bytes), servers, partition)
    assert again == Shards.spread(tensor_bytes, servers, partition)
    assert hash(again) == hash(Shards.spread(tensor_bytes, servers, partition))


def test_the_largest_runs_go_first_to_the_server_that_has_least() -> None:
    shards = Shards.spread([10, 70, 40, 25], servers=2)
    assert shards.runs_of(0) == [SubTask(1, 0, 70)]
    assert shards.runs_of(1) == [SubTask(0, 0, 10), SubTask(2, 0, 40), SubTask(3, 0, 25)]


def test_a_partition_is_a_run_of_whole_chunks() -> None:
    shards = Shards.spread([2 * CHUNK_BYTES + 1], servers=2, partition_bytes=CHUNK_BYTES + 1)
    assert shards.runs_of(0) == [SubTask(0, 0, 2 * CHUNK_BYTES)]
    assert shards.runs_of(1) == [SubTask(0, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 1)]


@given(st.data())
def test_a_part_is_cut_where_the_owner_changes_and_nowhere_else(data: st.DataObject) -> None:
    tensor_bytes = data.draw(sizes.filter(bool))
    shards = Shards.spread(tensor_bytes, data.draw(counts), data.draw(partitions))
    tensor = data.draw(st.integers(0, len(tensor_bytes) - 1))
    start = data.draw(st.integers(0, tensor_bytes[tensor] - 1))
    part = SubTask(tensor, start, data.draw(st.integers(start + 1, tensor_bytes[tensor])))
    found = shards.split(part)
    assert (found[0][1].start, found[-1][1].stop) == (part.start, part.stop)
    for (server, one), (following, other) in pairwise(found):
        assert one.stop == other.start
        assert server != following
    for server, one in found:
        for byte in {one.start, one.stop - 1, *range(one.start, one.stop, CHUNK_BYTES)}:
            assert shards.owner(tensor, byte) == server


@given(st.data())
def test_the_shard_of_a_lost_server_goes_to_the_next_living_one(data: st.DataObject) -> None:
    servers = data.draw(st.integers(2, 5))
    shards = Shards.spread(data.draw(sizes), servers, data.draw(partitions))
    gone = data.draw(st.lists(st.integers(0, servers - 1), unique=True, max_size=servers - 1))
    left = shards
    for server in gone:
        left = left.without(server)
    after = dict(owned(left))
    for run, before in owned(shards):
        ring = [(before + step) % servers for step in range(servers)]
        assert after[run] == next(server for server in ring if server not in gone)


def test_impossible_questions_are_refused() -> None:
    shards = Shards.spread([10, 20], servers=2)
    for tensor, byte in ((0, 10), (0, -1), (2, 0), (-1, 0)):
        with pytest.raises(InputError, match="there is no byte"):
            shards.owner(tensor, byte)
    with pytest.raises(InputError, match="there is no byte"):
        shards.split(SubTask(0, 5, 11))
    with pytest.raises(InputError, match="it is not there"):
        shards.without(2)
    with pytest.raises(InputError, match="it is not there"):
        shards.without(0).without(0)
    with pytest.raises(InputError, match="the last server is lost"):
        shards.without(0).without(1)
    with pytest.raises(InputError, match="servers is 0"):
        Shards.spread([1], servers=0)
