"""What a policy sends in one go, split by server and by element type, without losing a byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import CreditWindow, Element, SubTask, make_policy
from bytelane.core.knobs import Knobs
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor
from bytelane.runtime.ps.frames import MOST_PAYLOAD_BYTES
from bytelane.runtime.ps.shards import CHUNK_BYTES, Shards
from bytelane.runtime.ps.slices import MOST_BYTES, Slices

FLOAT, DOUBLE = Element("float32", 4), Element("float64", 8)
CLUSTER = Cluster.star(2, Link(1e9), servers=2)


def job_of(*tensor_bytes: int) -> Job:
    layers = tuple(Layer(f"l{i}", 0.1, 0.2) for i in range(len(tensor_bytes)))
    return Job("job", layers, tuple(Tensor(f"t{i}", n, (i,)) for i, n in enumerate(tensor_bytes)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Element], Shards, Slices]:
    count = draw(st.integers(1, 5))
    elements = [draw(st.sampled_from([FLOAT, DOUBLE])) for _ in range(count)]
    job = job_of(*(draw(st.integers(1, 30_000)) * element.bytes for element in elements))
    sizes = [tensor.bytes for tensor in job.tensors]
    shards = Shards.spread(sizes, draw(st.integers(1, 4)), draw(st.none() | st.just(CHUNK_BYTES)))
    policy = draw(st.sampled_from(["units", "bytescheduler", "fifo", "mg-wfbp"]))
    size = draw(st.integers(1000, 200_000))
    knobs = Knobs(size, size) if policy in ("units", "bytescheduler") else None
    made = make_policy(policy, job, CLUSTER, knobs)
    most = draw(st.sampled_from([1024, 2**26]))
    parts = made.cut(job).sub_tasks()
    return elements, shards, Slices.of_operations(parts, sizes, shards, elements, most)


@given(cases())
def test_the_slices_cover_every_byte_once(case: tuple[list[Element], Shards, Slices]) -> None:
    _, _, slices = case
    reached = [0] * len(slices.tensor_bytes)
    for part in sorted(part for one in slices.all for part in one.parts):
        assert part.start == reached[part.tensor]
        reached[part.tensor] = part.stop
    assert reached == list(slices.tensor_bytes)


@given(cases())
def test_a_slice_has_one_owner_one_kind_and_whole_elements(
    case: tuple[list[Element], Shards, Slices],
) -> None:
    elements, shards, slices = case
    for one in slices.all:
        for part in one.parts:
            assert [server for server, _ in shards.split(part)] == [one.server]
            assert elements[part.tensor].kind == one.kind
            assert part.start % elements[part.tensor].bytes == 0
            assert part.bytes % elements[part.tensor].bytes == 0


@given(cases())
def test_numbers_are_dense_server_by_server(case: tuple[list[Element], Shards, Slices]) -> None:
    _, _, slices = case
    listed = [
        (server, own)
        for server in range(slices.servers)
        for own in range(len(slices.of_server(server)))
    ]
    assert [slices.place(number) for number in range(len(slices))] == listed
    assert [slices.number(*place) for place in listed] == [*range(len(slices))]


def test_pieces_are_split_by_server_and_by_element_type() -> None:
    shards = Shards.spread([CHUNK_BYTES * 2, 8, 16], 2, CHUNK_BYTES)
    whole = (SubTask(0, 0, 2 * CHUNK_BYTES), SubTask(1, 0, 8), SubTask(2, 0, 16))
    sizes = [2 * CHUNK_BYTES, 8, 16]
    slices = Slices.of_operations([whole], sizes, shards, [FLOAT, FLOAT, DOUBLE])
    assert [(one.server, one.kind, one.parts) for one in slices.all] == [
        (0, "float32", (SubTask(0, 0, CHUNK_BYTES),)),
        (0, "float64", (SubTask(2, 0, 16),)),
        (1, "float32", (SubTask(0, CHUNK_BYTES, 2 * CHUNK_BYTES), SubTask(1, 0, 8))),
    ]


def test_a_slice_never_exceeds_a_payload() -> None:
    size = 3 * MOST_BYTES
    slices = Slices.of(
        make_policy("fifo", job_of(size), CLUSTER), job_of(size), Shards.spread([size], 1), [FLOAT]
    )
    assert [one.bytes for one in slices.all] == [MOST_BYTES] * 3
    assert MOST_BYTES < MOST_PAYLOAD_BYTES


def test_a_border_inside_an_element_moves_for_both_neighbours() -> None:
    parts = [(SubTask(0, 0, 5),), (SubTask(0, 5, 6),), (SubTask(0, 6, 12),)]
    slices = Slices.of_operations(parts, [12], Shards.spread([12], 1), [FLOAT])
    assert [one.parts for one in slices.all] == [(SubTask(0, 0, 4),), (SubTask(0, 4, 12),)]


def test_the_slices_are_a_plan_for_those_who_only_count() -> None:
    slices = Slices.of_operations([(SubTask(0, 0, 12),)], [12], Shards.spread([12], 2), [FLOAT])
    plan = slices.plan("p3", CreditWindow(7), version=3)
    assert [operation.parts for operation in plan.operations] == [(SubTask(0, 0, 12),)]
    assert [stage.collective for stage in plan.stages] == ["push", "pull"]
    assert plan.version == 3


def test_an_unknown_operation_of_a_server_is_refused() -> None:
    slices = Slices.of_operations([(SubTask(0, 0, 12),)], [12], Shards.spread([12], 2), [FLOAT])
    for server, own in ((0, 1), (0, -1), (1, 0)):
        with pytest.raises(InputError, match="has no operation"):
            slices.number(server, own)


def test_pulls_come_in_the_order_of_the_policy() -> None:
    job = job_of(8, 8, 16)
    policy = make_policy("units", job, CLUSTER, Knobs(12, 12))
    slices = Slices.of(policy, job, Shards.spread([8, 8, 16], 1), [FLOAT] * 3)
    assert [sorted(one.tensors) for one in slices.all] == [[0, 1], [1, 2], [2]]
    assert slices.pull_places(policy) == [0, 1, 2]
    equal = make_policy("fifo", job, CLUSTER)
    assert Slices.of(equal, job, Shards.spread([8, 8, 16], 1), [FLOAT] * 3).pull_places(equal) == [
        0, 0, 0,
    ]  # fmt: skip


def test_the_digest_tells_different_slices_apart() -> None:
    shards = Shards.spread([16], 1)
    whole, halves = [(SubTask(0, 0, 16),)], [(SubTask(0, 0, 8),), (SubTask(0, 8, 16),)]
    one, same, other, kind = (
        Slices.of_operations(parts, [16], shards, [element]).digest
        for parts, element in ((whole, FLOAT), (whole, FLOAT), (halves, FLOAT), (whole, DOUBLE))
    )
    assert one == same
    assert len({one, other, kind}) == 3
