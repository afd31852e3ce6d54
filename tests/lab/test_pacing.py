"""Pacing slows this process's TCP connections down, and touches nothing else."""

import math
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.errors import InputError
from bytelane.lab import open_sockets, pace
from bytelane.lab.pacing import SO_MAX_PACING_RATE

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="SO_MAX_PACING_RATE is Linux's"
)
UNLIMITED = -1

Tcp = tuple[socket.socket, socket.socket, socket.socket]


def rate_of(connection: socket.socket) -> int:
    return connection.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE)


@pytest.fixture(scope="module")
def tcp() -> Iterator[Tcp]:
    """A listening socket, and both ends of a connection to it."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = stack.enter_context(socket.create_connection(listening.getsockname()))
        far = stack.enter_context(listening.accept()[0])
        yield listening, near, far


@pytest.fixture
def others() -> Iterator[list[socket.socket]]:
    """Sockets that are no TCP connection: not connected, datagrams, inside the machine."""
    with ExitStack() as stack:
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.connect(("127.0.0.1", 9))
        found = [socket.socket(), datagrams, *socket.socketpair()]
        yield [stack.enter_context(one) for one in found]


def test_both_ends_of_a_connection_are_paced_and_counted(tcp: Tcp) -> None:
    listening, near, far = tcp
    assert pace([near.fileno(), far.fileno()], 1.25e6) == 2
    assert (rate_of(near), rate_of(far), rate_of(listening)) == (1_250_000, 1_250_000, UNLIMITED)


def test_what_is_no_tcp_connection_is_left_alone(tcp: Tcp, others: list[socket.socket]) -> None:
    left_alone = [tcp[0], *others]
    assert pace([one.fileno() for one in left_alone], 1e6) == 0
    internet = [one for one in left_alone if one.family == socket.AF_INET]
    assert [rate_of(one) for one in internet] == [UNLIMITED] * 3


@given(st.integers(1, 2**31 - 1) | st.floats(1, 2**31 - 1))
def test_the_kernel_reads_the_rate_back_in_whole_bytes(tcp: Tcp, rate: float) -> None:
    pace([tcp[1].fileno()], rate)
    assert rate_of(tcp[1]) == math.floor(rate)


def test_a_rate_of_25_gbit_can_be_paced(tcp: Tcp) -> None:
    assert pace([tcp[1].fileno()], 25e9 / 8) == 1
    in_full = tcp[1].getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8)
    assert int.from_bytes(in_full, sys.byteorder) == 3_125_000_000


def test_a_paced_connection_still_carries_bytes_and_stays_open(tcp: Tcp) -> None:
    _, near, far = tcp
    pace([near.fileno(), far.fileno()], 1e9)
    near.sendall(b"hello")
    assert far.recv(5, socket.MSG_WAITALL) == b"hello"


def test_pacing_opens_and_closes_nothing(tcp: Tcp, others: list[socket.socket]) -> None:
    before = os.listdir("/proc/self/fd")
    pace([one.fileno() for one in (*tcp, *others)], 1e9)
    assert os.listdir("/proc/self/fd") == before


def test_open_sockets_are_all_sockets_and_only_sockets(
    tcp: Tcp, others: list[socket.socket]
) -> None:
    assert {one.fileno() for one in (*tcp, *others)} <= open_sockets()
    with socket.socket() as another, open(os.devnull) as no_socket:
        descriptor = another.fileno()
        assert descriptor in open_sockets()
        assert no_socket.fileno() not in open_sockets()
    assert descriptor not in open_sockets()


@pytest.mark.parametrize("rate", [0, 0.5, -1e6])
def test_a_rate_that_carries_nothing_is_refused(tcp: Tcp, rate: float) -> None:
    pace([tcp[1].fileno()], 1e6)
    with pytest.raises(InputError, match=f"{rate} bytes per second cannot be paced"):
        pace([tcp[1].fileno()], rate)
    assert rate_of(tcp[1]) == 1_000_000


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_a_rate_that_is_no_number_is_refused(tcp: Tcp, rate: float) -> None:
    with pytest.raises(InputError):
        pace([tcp[1].fileno()], rate)
