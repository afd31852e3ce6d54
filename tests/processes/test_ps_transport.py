"""A worker's side of the parameter server keeps the contract of a transport, and fails by name."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bytelane.cluster import Cluster, Link
from bytelane.core import Element, Plan, SubTask, make_policy, policies_for
from bytelane.errors import InputError, NotSupported, TransferFailed, TransferTimeout
from bytelane.job import Job, Layer, Tensor
from bytelane.runtime.ps.address import Address
from bytelane.runtime.ps.connections import Connections, Member
from bytelane.runtime.ps.control import PsControl
from bytelane.runtime.ps.decisions import ServerDecisions
from bytelane.runtime.ps.frames import Taken
from bytelane.runtime.ps.keys import keygen, load_keys
from bytelane.runtime.ps.shards import CHUNK_BYTES, Shards
from bytelane.runtime.ps.slices import Slices
from bytelane.runtime.ps.transport import PsTransport, Served
from bytelane.runtime.sync import Contribution, Engine, Transport
from bytelane.testing import TransportContract
from bytelane.testing.transport_contract import IN_PARTS, NAMES, SIZES, WHOLE
from ps_servers import ServerThread, server_threads

pytestmark = pytest.mark.timeout(60)
FLOATS = [Element("float32", 4)] * len(SIZES)
SOON_S = 10.0


def slices_of(plan: Plan, servers: int) -> Slices:
    parts = [operation.parts for operation in plan.operations]
    shards = Shards.spread(plan.tensor_bytes, servers)
    return Slices.of_operations(parts, plan.tensor_bytes, shards, FLOATS)


class TestPsTransport(TransportContract):
    """Push and pull through two servers; every plan has servers of its own."""

    servers = 2

    @pytest.fixture(autouse=True)
    def _meetings(self) -> Iterator[None]:
        self._lock = threading.Lock()
        self._counts = [0] * self.world
        self._running: list[list[ServerThread]] = []
        self._connections: list[Connections] = []
        yield
        for connections in self._connections:
            connections.close()
        for servers in self._running:
            for server in servers:
                server.end()
                assert not server.drops.counts

    def connect(self, plan: Plan, rank: int) -> Transport:
        with self._lock:
            meeting = self._counts[rank]
            self._counts[rank] += 1
            if meeting == len(self._running):
                self._running.append([ServerThread() for _ in range(self.servers)])
            addresses = [server.address for server in self._running[meeting]]
            connections = Connections(addresses, Member("contract", rank, self.world))
            self._connections.append(connections)
        connections.join(SOON_S)
        return PsTransport(connections, Served(slices_of(plan, self.servers), credit_bytes=1024))

    def _engine(self, transport: Transport, plan: Plan) -> Engine:
        slices = slices_of(plan, self.servers)
        plan = slices.plan(plan.policy, plan.window)
        return Engine.of_plan(plan, transport, NAMES, timeout_s=30.0)

    def test_a_change_of_slices_between_two_rounds_needs_no_new_servers(self) -> None:
        plans = [WHOLE, IN_PARTS]

        def train(rank: int, transport: Transport) -> list[Any]:
            values = [self._round(transport, plans[0], rank, 0, [True] * 3)]
            slices = slices_of(plans[1], self.servers)
            with self._lock:
                connections = transport._connections  # type: ignore[attr-defined]
            later = PsTransport(connections, Served(slices, number=1))
            return [*values, self._round(later, plans[1], rank, 1, [True] * 3)]

        for values in self._run(plans[0], train):
            for number in range(2):
                for tensor, value in enumerate(values[number]):
                    np.testing.assert_array_equal(value, self._mean(tensor, number))


class TestPsTransportOfThree(TestPsTransport):
    """Three workers: sums are made in the order of ranks."""

    world = 3
    servers = 1

    def _mean(self, tensor: int, number: int) -> np.ndarray:
        third = np.float32(1 / 3)
        first, second, last = (self._mine(tensor, rank, number) * third for rank in range(3))
        return np.asarray((first + second) + last)


# --- one worker ----------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with server_threads(1) as (one,):
        yield one


@pytest.fixture
def alone(server: ServerThread) -> Iterator[Connections]:
    connections = Connections([server.address], Member("alone", 0, 1), silence_s=1.5)
    connections.join(SOON_S)
    yield connections
    connections.close()


def two_tensors() -> Slices:
    parts = [(SubTask(0, 0, 8),), (SubTask(1, 0, 4),)]
    return Slices.of_operations(parts, [8, 4], Shards.spread([8, 4], 1), FLOATS)


class Over:
    """Collects what a transport reports."""

    def __init__(self) -> None:
        self.messages: list[tuple[tuple[int, ...], Exception | None]] = []
        self._changed = threading.Condition()

    def __call__(self, message: tuple[int, ...], error: Exception | None) -> None:
        with self._changed:
            self.messages.append((message, error))
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.messages) >= count, SOON_S)


def taken(alone: Connections) -> tuple[PsTransport, list[np.ndarray]]:
    transport = PsTransport(alone, Served(two_tensors()))
    transport.begin_round(0, 0)
    values = [np.array([1, 2], np.float32), np.array([3], np.float32)]
    transport.take([Contribution(tensor, value) for tensor, value in enumerate(values)])
    return transport, values


def test_joined_operations_are_over_together(alone: Connections) -> None:
    transport, values = taken(alone)
    over = Over()
    transport.start((0, 1), over)
    over.wait_for(1)
    transport.start((2, 3), over)
    over.wait_for(2)
    assert over.messages == [((0, 1), None), ((2, 3), None)]
    assert [value.tolist() for value in values] == [[1, 2], [3]]
    assert transport.misplaced == 0


def test_a_sum_that_comes_before_its_pull_is_kept(alone: Connections) -> None:
    transport, values = taken(alone)
    over = Over()
    transport.start((0,), over)
    deadline = time.monotonic() + SOON_S
    while not transport._early and time.monotonic() < deadline:
        time.sleep(0.01)
    values[0][:] = 0
    transport.start((2,), over)
    assert over.messages[-1] == ((2,), None)
    assert values[0].tolist() == [1, 2]


def test_an_answer_to_nothing_is_counted_and_changes_nothing(alone: Connections) -> None:
    transport, _ = taken(alone)
    for header in (Taken(0, 0, 0), Taken(0, 7, 0), Taken(5, 0, 0), Taken(0, 0, 99)):
        transport._taken(0, header, memoryview(b""))
    assert transport.misplaced == 4


def test_a_server_that_falls_silent_fails_what_is_under_way_by_its_name(
    server: ServerThread, alone: Connections
) -> None:
    transport, _ = taken(alone)
    server.frozen = True
    over = Over()
    transport.start((0,), over)
    over.wait_for(1)
    assert "parameter server 0 at 127.0.0.1" in str(over.messages[0][1])
    transport.start((1,), over)
    assert isinstance(over.messages[1][1], TransferFailed)
    with pytest.raises(TransferFailed, match="has not answered"):
        PsControl(alone, 5.0).exchange(b"hello")


def test_a_server_that_ends_fails_what_is_under_way_at_once(
    server: ServerThread, alone: Connections
) -> None:
    transport, _ = taken(alone)
    server.frozen = True
    over = Over()
    transport.start((0,), over)
    began = time.monotonic()
    server.end()
    over.wait_for(1)
    assert time.monotonic() - began < 1
    assert "the connection to parameter server 0 at 127.0.0.1" in str(over.messages[0][1])


def test_a_server_that_is_not_there_is_named() -> None:
    nowhere = Connections([Address("127.0.0.1", 9)], Member("alone", 0, 1))
    with pytest.raises(TransferTimeout, match=r"127\.0\.0\.1:9 did not answer within 0.2 s"):
        nowhere.join(0.2)
    nowhere.close()


def test_an_address_that_cannot_be_one_is_refused_at_once() -> None:
    wrong = Connections([Address("*", 9)], Member("alone", 0, 1), plaintext=True)
    with pytest.raises(InputError, match=r"cannot connect to \*:9"):
        wrong.join(SOON_S)
    wrong.close()


def test_a_refusal_reaches_the_worker_as_a_sentence(
    server: ServerThread, alone: Connections
) -> None:
    other = Connections([server.address], Member("another job", 0, 1))
    with pytest.raises(NotSupported, match=r"refuses this worker: .* another job"):
        other.join(SOON_S)
    other.close()


def test_a_tensor_of_another_size_is_refused(alone: Connections) -> None:
    transport, _ = taken(alone)
    with pytest.raises(TransferFailed, match="has 12 bytes, not the 8"):
        transport.take([Contribution(0, np.zeros(3, np.float32))])
    with pytest.raises(TransferFailed, match="contiguous"):
        transport.take([Contribution(0, np.zeros((2, 2), np.float32)[:, 0])])


def test_connections_that_never_joined_can_be_closed() -> None:
    before = threading.active_count()
    connections = Connections([Address("127.0.0.1", 9)], Member("alone", 0, 1))
    connections.close()
    assert threading.active_count() == before
    assert connections.failure is None


def test_gradients_do_not_leave_this_host_unencrypted_unless_asked_for() -> None:
    away = [Address("192.0.2.1", 5600)]
    with pytest.raises(InputError, match=r"bytelane ps keygen FOLDER .* plaintext=True"):
        Connections(away, Member("alone", 0, 1))
    Connections(away, Member("alone", 0, 1), plaintext=True).close()


def test_a_worker_that_was_stopped_itself_does_not_find_the_servers_silent(
    alone: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_hour_later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600)
    monkeypatch.setattr("bytelane.runtime.ps.connections.time", an_hour_later)
    before = alone._beats
    deadline = time.monotonic() + SOON_S
    while alone._beats < before + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert alone.failure is None


def test_encrypted_it_works_the_same_and_a_wrong_key_is_named_as_a_reason(tmp_path: Path) -> None:
    keygen(tmp_path / "right")
    keygen(tmp_path / "wrong")
    server = ServerThread(load_keys(tmp_path / "right", "server"))
    alone = Connections(
        [server.address], Member("alone", 0, 1), keys=load_keys(tmp_path / "right", "worker")
    )
    alone.join(SOON_S)
    transport, values = taken(alone)
    over = Over()
    transport.start((0,), over)
    over.wait_for(1)
    transport.start((2,), over)
    over.wait_for(2)
    assert over.messages == [((0,), None), ((2,), None)]
    assert values[0].tolist() == [1, 2]
    stranger = Connections(
        [server.address], Member("alone", 0, 1), keys=load_keys(tmp_path / "wrong", "worker")
    )
    with pytest.raises(TransferTimeout, match="correct its address or keys"):
        stranger.join(0.5)
    stranger.close()
    alone.close()
    server.end()


def test_a_worker_that_raises_ends_at_once(server: ServerThread) -> None:
    script = (
        "from bytelane.runtime.ps.connections import Connections, Member\n"
        "from bytelane.runtime.ps.address import parse_address\n"
        f"there = Connections([parse_address('{server.address}')], Member('alone', 0, 1))\n"
        "there.join(10.0)\n"
        "raise SystemExit(7)"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=SOON_S)
    assert ended.returncode == 7


# --- policies ------------------------------------------------------------------------------------

KINDS = [np.float32, np.float64, np.float32, np.complex64]
ELEMENTS = [Element(np.dtype(kind).name, np.dtype(kind).itemsize) for kind in KINDS]
COUNTS = (40_000, 5, 1, 20_000)
BIG = tuple(count * element.bytes for count, element in zip(COUNTS, ELEMENTS, strict=True))


def gradients(rank: int) -> list[np.ndarray]:
    chance = np.random.default_rng(rank)
    return [chance.normal(size=n).astype(kind) for n, kind in zip(COUNTS, KINDS, strict=True)]


@pytest.mark.parametrize("servers", [1, 3, 9])
@pytest.mark.parametrize("name", policies_for("ps"))
def test_under_every_policy_every_rank_gets_the_sum_in_rank_order(name: str, servers: int) -> None:
    layers = tuple(Layer(f"l{i}", 0.1, 0.2) for i in range(4))
    job = Job("job", layers, tuple(Tensor(f"t{i}", n, (i,)) for i, n in enumerate(BIG)))
    policy = make_policy(name, job, Cluster.star(3, Link(1e9), servers=3))
    # Eight runs: one of nine servers owns nothing.
    slices = Slices.of(policy, job, Shards.spread(BIG, servers, CHUNK_BYTES), ELEMENTS)
    results: list[Any] = [None] * 3

    def be(rank: int) -> None:
        connections = Connections(addresses, Member("policies", rank, 3))
        connections.join(SOON_S)
        places, window = slices.pull_places(policy), policy.stages[1].window
        transport = PsTransport(connections, Served(slices, 0, places, window.credit_bytes))
        operations = slices.operations(policy, [tensor.name for tensor in job.tensors])
        decisions = ServerDecisions(policy, job, slices)
        engine = Engine(decisions, operations, transport, timeout_s=SOON_S)
        values = gradients(rank)
        transport.begin_round(0, 0)
        for tensor in np.random.default_rng([rank, servers]).permutation(4).tolist():
            transport.take([Contribution(tensor, values[tensor])])
            engine.notify_ready(tensor)
        engine.wait(range(4))
        results[rank] = values
        connections.close()

    with server_threads(servers) as running:
        addresses = [server.address for server in running]
        ranks = [threading.Thread(target=be, args=(rank,)) for rank in range(3)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join(3 * SOON_S)
    for tensor, kind in enumerate(KINDS):
        third = np.dtype(kind).type(1 / 3)
        first, second, last = (gradients(rank)[tensor] * third for rank in range(3))
        for values in results:
            assert values[tensor].tobytes() == ((first + second) + last).tobytes()


# --- exchanges -----------------------------------------------------------------------------------


def on_ranks(count: int, server: ServerThread, do: Any) -> list[Any]:
    results: list[Any] = [None] * count

    def be(rank: int) -> None:
        connections = Connections([server.address], Member("talk", rank, count))
        connections.join(SOON_S)
        results[rank] = do(rank, PsControl(connections, 1.0))
        connections.close()

    ranks = [threading.Thread(target=be, args=(rank,)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(3 * SOON_S)
    return results


def test_every_rank_hears_what_all_have_said_in_rank_order(server: ServerThread) -> None:
    def talk(rank: int, control: PsControl) -> list[list[bytes]]:
        assert (control.rank, control.size) == (rank, 3)
        first = control.exchange(bytes([rank]))
        return [first, control.exchange(b"", page="other"), control.exchange(bytes([rank + 10]))]

    said = [[b"\x00", b"\x01", b"\x02"], [b"", b"", b""], [b"\n", b"\x0b", b"\x0c"]]
    assert on_ranks(3, server, talk) == [said] * 3


def test_an_exchange_that_a_rank_stays_away_from_ends(server: ServerThread) -> None:
    def talk(rank: int, control: PsControl) -> str:
        if rank:
            return ""
        with pytest.raises(TransferTimeout) as caught:
            control.exchange(b"")
        return str(caught.value)

    assert "has not heard from every rank within 1 s" in on_ranks(2, server, talk)[0]
