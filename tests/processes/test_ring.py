"""A row is cut into chunks, one a rank, and its sum goes round the ring: exactly, and no more."""

import gc
import os
import socket
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from random import Random
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from bytelane.core import CreditWindow, Operation, Plan, SubTask, in_halves
from bytelane.errors import PlanMismatch
from bytelane.runtime.sync import Contribution
from bytelane.runtime.torch import ring_transport
from bytelane.runtime.torch.ring import Place, Ring, cut
from bytelane.runtime.torch.ring_transport import RingTransport
from bytelane.runtime.torch.sockets import Sockets
from ranks import Pool

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[Pool]:
    with Pool(3) as pool:
        yield pool


# --- cutting --------------------------------------------------------------------------------------

rows = st.lists(st.integers(0, 60), min_size=1, max_size=8)


@given(rows, st.integers(1, 9), st.integers(1, 20))
def test_the_chunks_hold_every_element_once_and_in_order(
    lengths: list[int], world: int, most: int
) -> None:
    places = [place for chunks in cut(lengths, world, most) for chunk in chunks for place in chunk]
    elements = [(which, k) for which, start, stop in places for k in range(start, stop)]
    assert elements == [(which, k) for which, length in enumerate(lengths) for k in range(length)]


@given(rows, st.integers(1, 9), st.integers(1, 20))
def test_every_slice_has_a_chunk_for_each_rank_and_chunks_are_as_equal_as_can_be(
    lengths: list[int], world: int, most: int
) -> None:
    slices = cut(lengths, world, most)
    sizes = [[sum(p.stop - p.start for p in chunk) for chunk in chunks] for chunks in slices]
    assert {len(of_slice) for of_slice in sizes} == {world}
    assert max(map(max, sizes)) <= most
    assert max(map(max, sizes)) - min(map(min, sizes)) <= 1
    assert len(slices) == max(1, -(-sum(lengths) // (world * most)))


def test_a_chunk_may_lie_in_several_tensors() -> None:
    assert cut([3, 1, 4], world=2, most=2) == [
        [[Place(0, 0, 2)], [Place(0, 2, 3), Place(1, 0, 1)]],
        [[Place(2, 0, 2)], [Place(2, 2, 4)]],
    ]


# --- summing --------------------------------------------------------------------------------------


def views_of(row: list[torch.Tensor], chunks: list[list[Place]]) -> list[list[torch.Tensor]]:
    return [[row[which][start:stop] for which, start, stop in chunk] for chunk in chunks]


def sums(rank: int, seed: int) -> list[str]:
    """Sum random rows of whole numbers, and say where it went wrong."""
    group = dist.new_group(backend="gloo")
    ring, world, random = Ring(group), dist.get_world_size(), Random(seed)
    wrong = []
    for case in range(12):
        lengths = [random.choice([0, 1, 2, 7, 40_000]) for _ in range(random.randint(1, 5))]
        dtype, most = random.choice(DTYPES), random.choice([1000, 20_000, 10**6])
        if sum(lengths) > 100 * most:
            continue  # a great many slices
        everybodys = [
            [torch.tensor([random.randrange(8)], dtype=dtype).repeat(n) for n in lengths]
            for _ in range(world)
        ]
        mine = [tensor.clone() for tensor in everybodys[rank]]
        total = [sum(tensors[1:], tensors[0]) for tensors in zip(*everybodys, strict=True)]
        slices = cut(lengths, world, most)
        for half in (ring.reduce_scatter, ring.all_gather):
            for number, chunks in enumerate(slices):
                half(views_of(mine, chunks), number * world)
                if half == ring.reduce_scatter:
                    owned = views_of(mine, chunks)[(rank + 1) % world]
                    right = views_of(total, chunks)[(rank + 1) % world]
                    if not all(map(torch.equal, owned, right)):
                        wrong.append(f"case {case}: what this rank owns")
        if not all(map(torch.equal, mine, total)):
            wrong.append(f"case {case}: {lengths} {dtype} {most}")
    return wrong


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("ranks", ["two_ranks", "three_ranks", "four_ranks"])
def test_all_ranks_hold_the_sum(request: pytest.FixtureRequest, ranks: str, seed: int) -> None:
    pool: Pool = request.getfixturevalue(ranks)
    assert pool.run(sums, seed=seed) == [[]] * pool.world


def in_another_order(rank: int) -> bool:
    """Let two slices go round at once, begun in another order on every other rank."""
    ring, world = Ring(dist.new_group(backend="gloo")), dist.get_world_size()
    rows = [torch.full((9,), float(rank + 10 * k)) for k in range(2)]

    def go_round(k: int) -> None:
        views = views_of([rows[k]], cut([9], world, 9)[0])
        ring.reduce_scatter(views, 2 * k * world)
        ring.all_gather(views, (2 * k + 1) * world)

    order = (0, 1) if rank % 2 else (1, 0)
    threads = [threading.Thread(target=go_round, args=(k,)) for k in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    ranks = world * (world - 1) / 2
    return all(bool((rows[k] == ranks + 10 * k * world).all()) for k in range(2))


def test_tags_and_not_the_order_say_what_belongs_together(four_ranks: Pool) -> None:
    assert four_ranks.run(in_another_order) == [True] * 4


# --- what is on the wire --------------------------------------------------------------------------

BYTES_RECEIVED = slice(128, 136)  # in the kernel's struct tcp_info


def received_bytes(sockets: Sockets) -> int:
    total = 0
    for number in sockets._identities:
        with socket.socket(fileno=os.dup(number)) as same:
            info = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            total += int.from_bytes(info[BYTES_RECEIVED], "little")
    return total


def on_the_wire(rank: int) -> list[float]:
    """Return what each half receives, per byte of the row."""
    sockets = Sockets()
    with sockets.collecting():
        group = dist.new_group(backend="gloo")
        group.barrier().wait()
    ring, world = Ring(group), dist.get_world_size()
    row = torch.ones(2**20)
    slices = cut([row.numel()], world, 2**16)
    found = []
    for half in (ring.reduce_scatter, ring.all_gather):
        group.barrier().wait()
        before = received_bytes(sockets)
        for number, chunks in enumerate(slices):
            half(views_of([row], chunks), number * world)
        found.append((received_bytes(sockets) - before) / row.nbytes)
    return found


@pytest.mark.parametrize("ranks", ["two_ranks", "four_ranks"])
def test_each_half_moves_half_of_an_ideal_all_reduce(
    request: pytest.FixtureRequest, ranks: str
) -> None:
    pool: Pool = request.getfixturevalue(ranks)
    ideal = (pool.world - 1) / pool.world
    for halves in pool.run(on_the_wire):
        assert all(ideal <= half < 1.01 * ideal for half in halves), halves


# --- operations -----------------------------------------------------------------------------------


def halves(*tensor_bytes: int) -> Plan:
    whole = tuple(Operation((SubTask(t, 0, size),)) for t, size in enumerate(tensor_bytes))
    order = tuple(range(len(whole)))
    return Plan("test", tensor_bytes, whole, CreditWindow(), barrier=False, stages=in_halves(order))


class Broken:
    """A process group whose transfers fail."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def send(self, *_: Any) -> None:
        raise RuntimeError("connection reset")


def transport_of(plan: Plan, group: Any) -> RingTransport:
    count = len(plan.tensor_bytes)
    names = [f"t{t}" for t in range(count)]
    transport = RingTransport(plan, [torch.float32] * count, [group], names)
    transport.begin_round(0, 0)
    transport.take(
        Contribution(t, torch.ones(size // 4)) for t, size in enumerate(plan.tensor_bytes)
    )
    return transport


def test_an_operation_fails_once_however_many_of_its_slices_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ring_transport, "CHUNK_BYTES", 64)
    reports: SimpleQueue[tuple[int, Exception | None]] = SimpleQueue()
    transport = transport_of(halves(4096, 4), Broken())
    for operation in range(2):
        transport.start((operation,), lambda *report: reports.put(report))
    for _ in range(2):
        _, error = reports.get(timeout=10)
        assert str(error) == "connection reset"
    assert reports.empty()


def ring_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("bytelane-ring")]


def test_the_threads_go_with_the_transport() -> None:
    before = set(ring_threads())
    reports: SimpleQueue[int] = SimpleQueue()
    transport = transport_of(halves(4), Broken())
    transport.start((0,), lambda message, error: reports.put(message[0]))
    reports.get(timeout=10)
    started = set(ring_threads()) - before
    assert len(started) == ring_transport.AT_ONCE
    del transport
    gc.collect()
    for thread in started:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in started)


def meeting_another_plan(rank: int) -> list[str]:
    """Carry both halves under plans that differ in nothing but their number."""
    reports: SimpleQueue[tuple[int, Exception | None]] = SimpleQueue()
    plan = msgspec.structs.replace(halves(4096), version=rank)
    transport = transport_of(plan, dist.new_group(backend="gloo"))
    found = []
    for operation in range(2):
        transport.start((operation,), lambda *report: reports.put(report))
        found.append(type(reports.get(timeout=30)[1]).__name__)
    return found


def test_another_plan_is_noticed_when_the_second_half_is_over(two_ranks: Pool) -> None:
    for found in two_ranks.run(meeting_another_plan):
        assert found == ["NoneType", PlanMismatch.__name__]
