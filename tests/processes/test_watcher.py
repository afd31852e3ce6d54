"""The rank's side, in this very process: what it is told, and what is left of it."""

import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bytelane.errors import (
    InputError,
    PeerError,
    PeerFailed,
    PeerFrozen,
    PeerLost,
    TrainingError,
)
from bytelane.runtime.liveness import address as address_module
from bytelane.runtime.liveness.address import Address, reachable_address
from bytelane.runtime.liveness.failure_detector import Limits
from bytelane.runtime.liveness.message import (
    TOKEN_BYTES,
    Answer,
    Fault,
    Kind,
    Message,
    State,
    decode,
    encode,
)
from bytelane.runtime.liveness.process_state import WatchedProcess
from bytelane.runtime.liveness.tcp_probe import TcpProbes
from bytelane.runtime.liveness.udp import UdpSocket, bind, bind_both
from bytelane.runtime.liveness.watcher import Watcher
from process_lookup import state_of
from watched import PATIENCE_S, await_true, children_of

pytestmark = pytest.mark.timeout(60)

HERE = "127.0.0.1"


class Peers:
    """All other ranks of a watcher, made up: one socket, and a udp for each."""

    def __init__(self, world: int) -> None:
        self.socket, self.door = bind_both(HERE)
        port = self.socket.getsockname()[1]
        self.addresses = [
            Address(HERE, port, rank, os.urandom(TOKEN_BYTES)) for rank in range(world)
        ]
        self.said: list[str] = []
        self.watcher = Watcher(0, world, host=HERE, say=self.said.append)
        self.addresses[0] = Address.decode(self.watcher.address)
        for rank in range(1, world):
            self.watcher.connect(rank, self.addresses[rank].encode())
        self._sockets = [
            UdpSocket(self.socket, rank, own) for rank, own in enumerate(self.addresses)
        ]
        for udp in self._sockets[1:]:
            udp.meet(0, self.addresses[0])

    def tell(self, rank: int, kind: Kind = Kind.BEAT, progress: int = 0, **said: object) -> None:
        udp = self._sockets[rank]
        udp.send(kind, [0], progress=progress, state=State.RUNNING, **said)  # type: ignore[arg-type]

    def send(self, datagram: bytes) -> None:
        self.socket.sendto(datagram, (HERE, self.addresses[0].port))

    def await_message(self, *kinds: Kind) -> Message:
        """Return the next message of such a kind that the sentinel sends to one of them."""
        tokens = {rank: one.token for rank, one in enumerate(self.addresses)}
        found: list[Message] = []

        def has_come() -> bool:
            try:
                message = decode(self.socket.recv(2048), tokens, 1)
            except BlockingIOError:
                return False
            found.extend([message] if message and message.kind in kinds else [])
            return bool(found)

        assert await_true(has_come)
        return found[0]


@contextmanager
def peers(world: int) -> Iterator[Peers]:
    made_up = Peers(world)
    try:
        yield made_up
    finally:
        for rank in range(1, world):
            made_up.tell(rank, Kind.LEFT)  # so that nobody is waited for
        made_up.watcher.close()
        made_up.socket.close()
        made_up.door.close()


# Hearing of losses


def test_a_loss_is_told_once_to_everybody_who_asked() -> None:
    with peers(3) as others:
        told: list[PeerError] = []
        others.watcher.on_loss(told.append)
        others.watcher.on_loss(told.append)
        others.tell(2, Kind.DIED)
        others.tell(1, Kind.DIED)
        loss = others.watcher.loss(PATIENCE_S)
        assert isinstance(loss, PeerLost)
        assert loss.rank == 2
        assert await_true(lambda: len(told) == 2)
        others.watcher.on_loss(told.append)  # it happened before
        assert told == [loss, loss, loss]


def test_it_is_told_in_a_thread_of_the_watcher() -> None:
    with peers(2) as others:
        threads: list[str] = []
        others.watcher.on_loss(lambda _: threads.append(threading.current_thread().name))
        others.tell(1, Kind.FAILED, reason="no")
        assert await_true(lambda: threads == ["bytelane-watch"])


def test_whoever_raises_does_not_keep_others_from_hearing() -> None:
    with peers(2) as others:
        told: list[PeerError] = []
        others.watcher.on_loss(lambda _: 1 / 0)  # type: ignore[arg-type]
        others.watcher.on_loss(told.append)
        others.tell(1, Kind.FAILED, reason="no")
        assert await_true(lambda: len(told) == 1)
        assert others.said == [
            "a callback for a lost rank raised ZeroDivisionError('division by zero')"
        ]


def test_nothing_is_waited_for_that_cannot_come(monkeypatch: pytest.MonkeyPatch) -> None:
    with peers(2) as others:
        assert others.watcher.loss() is None
        assert others.watcher.loss(0.05) is None
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        os.kill(others.watcher._process.pid, signal.SIGKILL)
        assert others.watcher.loss(1e6) is None
        assert await_true(lambda: len(others.said) == 1)
        assert "this rank's sentinel has ended" in others.said[0]


# A sentinel that is lost


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_sentinel_is_replaced_where_it_was(number: int) -> None:
    with peers(3) as others:
        told: list[PeerError] = []
        others.watcher.on_loss(told.append)
        former, last = others.watcher._process.pid, others.await_message(Kind.BEAT).number
        os.kill(former, number)
        others.tell(2, Kind.DIED)  # meanwhile: whoever comes next finds it
        assert await_true(lambda: others.watcher._process.pid != former)
        assert others.await_message(Kind.BEAT, Kind.FAILED).number > last
        assert await_true(lambda: [loss.rank for loss in told] == [2])
        assert others.said == ["this rank's sentinel was lost; another one has taken its place"]
        assert state_of(former) == "X"  # not even a zombie


def test_a_sentinel_that_never_stays_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    with peers(2) as others:
        monkeypatch.setattr("bytelane.runtime.liveness.launch._BOOT", "raise SystemExit")
        os.kill(others.watcher._process.pid, signal.SIGKILL)
        assert await_true(lambda: not others.watcher._thread.is_alive())
        assert "this rank's sentinel has ended" in others.said[-1]
        assert len(others.said) == 5


# A rank that is stopped or killed together with its sentinel


def test_a_rank_is_known_to_exist_by_its_door() -> None:
    with peers(2) as others:
        own, tcp_probes = others.addresses[0], TcpProbes()
        assert await_true(lambda: tcp_probes.probe(0, own) is Answer.THERE)
        others.tell(1, Kind.LEFT)
        others.watcher.close()
        assert await_true(lambda: tcp_probes.probe(0, own) is Answer.GONE)
        tcp_probes.forget(0)


def test_one_of_both_is_enough_to_know_each_other() -> None:
    one, two = (Watcher(rank, 2, host=HERE, say=print) for rank in range(2))
    one.connect(1, two.address)
    one.report_failure("on purpose")
    assert str(two.loss(PATIENCE_S)) == "rank 0 failed: on purpose"
    two.close()
    one.close()


# Hearing of three hundred


def test_three_hundred_peers_are_heard_and_the_slowest_is_found() -> None:
    with peers(301) as others:
        others.watcher.progress(9)
        others.await_message(Kind.BEAT)
        slow = random.Random(1).sample(range(1, 301), 2)

        def found() -> bool:
            for rank in range(1, 301):
                others.tell(rank, progress=7 if rank in slow else 9)
                time.sleep(0.0001)
            return [one.rank for one in others.watcher.behind()] == sorted(slow)

        assert await_true(found)
        for one in others.watcher.behind():
            assert (one.progress, one.state, one.kind) == (7, State.RUNNING, Kind.BEAT)
            assert one.condition == "is alive (running)"
        others.tell(300, Kind.DIED)
        loss = others.watcher.loss(PATIENCE_S)
        assert isinstance(loss, PeerLost)
        assert loss.rank == 300


def test_what_is_not_from_a_peer_is_not_heard() -> None:
    with peers(3) as others:
        chance = random.Random(2)
        token = others.addresses[1].token
        death = encode(Message(Kind.DIED, 1, 99), token)
        others.await_message(Kind.BEAT)
        others.send(b"")
        others.send(death[:-1])
        others.send(encode(Message(Kind.DIED, 1, 99), others.addresses[2].token))
        others.send(encode(Message(Kind.DIED, 0, 99), others.addresses[0].token))  # of itself
        for _ in range(200):
            others.send(chance.randbytes(chance.randrange(1500)))
            others.send(encode(Message(Kind.DIED, 1, 99), chance.randbytes(TOKEN_BYTES)))
            time.sleep(0.0001)  # or the socket is full, and nobody hears anything
        others.watcher.progress(4)

        def heard() -> bool:
            others.tell(1, progress=3)
            others.tell(2, progress=3)
            return [one.progress for one in others.watcher.behind()] == [3, 3]

        assert await_true(heard)
        assert others.watcher.loss() is None
        others.send(death)
        assert others.watcher.loss(PATIENCE_S) is not None


def test_an_ending_is_acknowledged() -> None:
    with peers(2) as others:
        others.tell(1, Kind.LEFT)
        assert others.await_message(Kind.ACKNOWLEDGED).kind is Kind.ACKNOWLEDGED


# Telling of the end


@contextmanager
def closing(others: Peers) -> Iterator[threading.Thread]:
    """A watcher says farewell, meanwhile."""
    others.await_message(Kind.BEAT, Kind.FAILED)
    thread = threading.Thread(target=others.watcher.close)
    thread.start()
    yield thread
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_farewell_is_repeated_until_it_is_acknowledged() -> None:
    with peers(2) as others, closing(others) as thread:
        numbers = [others.await_message(Kind.LEFT).number for _ in range(3)]
        assert numbers == sorted(set(numbers))
        others.tell(1, Kind.ACKNOWLEDGED)
        thread.join(PATIENCE_S)
        left = 0
        while True:
            try:
                others.socket.recv(2048)
            except BlockingIOError:
                break
            left += 1
        assert left <= 1  # it was under way


def test_the_last_word_of_a_rank_that_failed_is_why() -> None:
    with peers(2) as others:
        others.watcher.report_failure("KeyError")
        with closing(others):
            ending = (Kind.LEFT, Kind.DIED, Kind.FAILED)
            said = [others.await_message(*ending) for _ in range(3)]
            others.tell(1, Kind.ACKNOWLEDGED)
        assert {(one.kind, one.reason) for one in said} == {(Kind.FAILED, "KeyError")}


def test_who_has_lost_a_peer_has_failed_because_of_it() -> None:
    """Else a peer that was only frozen would take its leaving for a regular end."""
    with peers(3) as others:
        others.tell(1, Kind.DIED)
        loss = others.watcher.loss(PATIENCE_S)
        others.watcher.report_failure("a transfer failed")
        with closing(others):
            said = others.await_message(Kind.LEFT, Kind.FAILED)
            assert (said.kind, said.about, said.fault) == (Kind.FAILED, 1, Fault.LOST)
            assert said.reason == str(loss)
            others.tell(2, Kind.ACKNOWLEDGED)


# Leaving nothing behind


def open_files() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def test_nothing_is_left_of_a_closed_watcher() -> None:
    kept = []

    def cycle() -> None:
        with peers(3) as others:
            kept.append(others.watcher)
            others.watcher.progress(1)
            others.tell(1, Kind.DIED)
            assert others.watcher.loss(PATIENCE_S)

    cycle()
    before = (open_files(), threading.active_count(), children_of(os.getpid()))
    cycle()
    assert (open_files(), threading.active_count(), children_of(os.getpid())) == before


def test_a_closed_watcher_can_be_used_without_effect() -> None:
    with peers(2) as others:
        others.tell(1, Kind.LEFT, progress=6)
        others.watcher.progress(5)
        others.watcher.close()
        others.watcher.close()
        others.watcher.progress(6)
        others.watcher.report_failure("too late")
        assert others.watcher.loss(1e6) is None
        assert others.said == []


def test_a_watcher_can_be_closed_by_whoever_hears_of_a_loss() -> None:
    with peers(2) as others:
        others.watcher.on_loss(lambda _: others.watcher.close())
        others.tell(1, Kind.DIED)
        others.watcher._thread.join(PATIENCE_S)
        assert not others.watcher._thread.is_alive()
        assert others.said == []


def test_a_sentinel_that_does_not_end_is_ended() -> None:
    with peers(2) as others:
        others.await_message(Kind.BEAT)
        os.kill(others.watcher._process.pid, signal.SIGSTOP)
        others.watcher.close()
        assert others.watcher._process.returncode == -signal.SIGKILL


# Being refused


@pytest.mark.parametrize(
    ("rank", "limits", "message"),
    [
        (2, Limits(), "there is no rank 2 among 2"),
        (-1, Limits(), "there is no rank -1 among 2"),
        (0, Limits(frozen_s=0), "frozen_s must be more than 0"),
        (0, Limits(silent_s=1), r"silent_s at least 2 s"),
        (0, Limits(silent_s=60), "lost_s more than silent_s"),
    ],
)
def test_what_cannot_be_is_refused(rank: int, limits: Limits, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Watcher(rank, 2, host=HERE, say=print, limits=limits)


def test_another_hosts_address_is_refused() -> None:
    before = open_files()
    with pytest.raises(
        TrainingError, match=r"cannot listen at 192\.0\.2\.1: .*address of this host"
    ):
        Watcher(0, 2, host="192.0.2.1", say=print)
    assert open_files() == before


def test_without_an_interpreter_there_is_no_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = open_files()
    with pytest.raises(TrainingError, match="cannot start a sentinel: No such file or directory"):
        Watcher(0, 2, host=HERE, say=print)
    assert open_files() == before


def test_wrong_addresses_are_refused() -> None:
    watcher = Watcher(0, 2, host=HERE, say=print)
    with pytest.raises(InputError, match="rank 2 is no peer of rank 0 among 2"):
        watcher.connect(2, Address(HERE, 9, 1, bytes(TOKEN_BYTES)).encode())
    with pytest.raises(InputError, match="rank 0 is no peer of rank 0"):
        watcher.connect(0, watcher.address)
    with pytest.raises(InputError, match="the address of rank 1 cannot be read"):
        watcher.connect(1, b"nonsense")
    watcher.close()


# Addresses


@pytest.mark.parametrize(
    ("master", "host"),
    [(None, HERE), ("localhost", HERE), ("127.0.0.1", HERE), ("::1", "::1")],
)
def test_ranks_of_one_host_use_its_loopback(master: str | None, host: str) -> None:
    assert reachable_address(master) == host


def test_ranks_of_a_host_without_ipv4_use_its_only_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(address_module, "_is_ours", lambda host: host == "::1")
    assert reachable_address("localhost") == reachable_address(None) == "::1"


def test_the_address_is_the_one_towards_the_master() -> None:
    assert reachable_address("127.0.0.9") != ""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            outside = probe.getsockname()[0]
    except OSError:
        pytest.skip("this host has no way outside")
    assert reachable_address("192.0.2.7") == outside


def test_a_master_that_is_this_host_by_name_is_reached_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian writes 127.0.1.1 into /etc/hosts for the host's own name."""
    towards = {"node0": "127.0.0.1", address_module._SOMEWHERE[0]: "10.0.0.5"}
    monkeypatch.setattr(address_module, "_towards", towards.__getitem__)
    assert reachable_address("node0") == "10.0.0.5"


def test_a_host_without_a_way_outside_has_only_its_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def towards(host: str) -> str:
        if host == "node0":
            return "127.0.0.1"
        raise OSError("unreachable")

    monkeypatch.setattr(address_module, "_towards", towards)
    assert reachable_address("node0") == "127.0.0.1"


def test_ipv6_works_too() -> None:
    try:
        bind("::1").close()
    except OSError:
        pytest.skip("no IPv6 here")
    one, two = (Watcher(rank, 2, host="::1", say=print) for rank in range(2))
    one.connect(1, two.address)
    two.report_failure("on purpose")
    loss = one.loss(PATIENCE_S)
    two.close()
    one.close()
    assert str(loss) == "rank 1 failed: on purpose"


# Errors


@pytest.mark.parametrize("kind", [PeerLost, PeerFrozen, PeerFailed])
def test_an_error_says_which_rank_also_in_another_process(kind: type[PeerError]) -> None:
    error = pickle.loads(pickle.dumps(kind("rank 3 is gone", 3)))
    assert (type(error), error.rank, str(error)) == (kind, 3, "rank 3 is gone")
    assert isinstance(error, TrainingError)


# What the kernel says


@pytest.mark.parametrize("has_files", [True, False])
def test_a_process_is_seen_as_it_is(has_files: bool) -> None:
    child = subprocess.Popen(["sleep", "60"])
    stat = os.open(f"/proc/{child.pid}/stat", os.O_RDONLY)
    pidfd = os.pidfd_open(child.pid)
    guarded = WatchedProcess(child.pid, *((pidfd, stat) if has_files else (None, None)))

    def sees(state: State) -> bool:
        return await_true(lambda: guarded.state() is (state if has_files else State.UNKNOWN))

    try:
        assert sees(State.SLEEPING)
        child.send_signal(signal.SIGSTOP)
        assert sees(State.STOPPED)
        child.send_signal(signal.SIGCONT)
        assert sees(State.SLEEPING)
        # Without a pidfd only a child can tell, by its parent; this is the parent.
        assert guarded.has_ended() == (not has_files)
        child.kill()
        assert await_true(guarded.has_ended)
        child.wait()
        assert sees(State.UNKNOWN)
    finally:
        child.kill()
        child.wait()
        os.close(stat)
        os.close(pidfd)


# Size


def test_a_sentinel_loads_nothing_heavy() -> None:
    """What it costs is measured, not tested; this is what would make it dear."""
    code = (
        "import sys; sys.path.append(sys.argv[1]); import bytelane.runtime.liveness.sentinel; "
        "print(*sys.modules.keys() & {'threading', 'subprocess', 'json', 'msgspec', 'tempfile'})"
    )
    root = os.path.dirname(os.path.dirname(sys.modules["bytelane"].__file__ or ""))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
