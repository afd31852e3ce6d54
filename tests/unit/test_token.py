"""A listener takes the connections that know the token, whatever else connects."""

import socket
import threading
from collections.abc import Iterator

import pytest

from bytelane.lab.token import MOST_STRANGERS, TOKEN_BYTES, accept_known, new_token


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=2 * MOST_STRANGERS) as server:
        yield server


def connected(server: socket.socket, *pieces: bytes) -> socket.socket:
    connection = socket.create_connection(server.getsockname(), 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        connection.sendall(piece)
    return connection


def test_strangers_who_were_first_are_turned_away(server: socket.socket) -> None:
    token = new_token()
    silent = connected(server)
    wrong = connected(server, bytes(TOKEN_BYTES))
    short = connected(server, token[:-1])
    gone = connected(server, token[:3])
    gone.close()
    ours = connected(server, token + b"and more")
    with silent, wrong, short, ours:
        (found,) = accept_known(server, token, 1, 10)
        with found:
            found.settimeout(5)
            assert found.getpeername() == ours.getsockname()
            assert found.recv(100) == b"and more"
        for stranger in (silent, wrong, short):
            assert stranger.recv(1) == b""


def test_a_token_may_come_in_pieces(server: socket.socket) -> None:
    token, ours = new_token(), connected(server)

    def say() -> None:
        for byte in token:
            ours.sendall(bytes([byte]))

    thread = threading.Thread(target=say)
    thread.start()
    with ours, accept_known(server, token, 1, 10)[0] as found:
        thread.join()
        assert found.getpeername() == ours.getsockname()


def test_a_crowd_of_silent_strangers_keeps_nobody_out(server: socket.socket) -> None:
    token = new_token()
    crowd = [connected(server) for _ in range(MOST_STRANGERS + 20)]
    ours = [connected(server, token) for _ in range(3)]
    found = accept_known(server, token, 3, 10)
    assert {one.getpeername() for one in found} == {one.getsockname() for one in ours}
    for connection in (*crowd, *ours, *found):
        connection.close()


def test_strangers_alone_are_not_waited_for_longer(server: socket.socket) -> None:
    with connected(server), pytest.raises(TimeoutError, match="0 of 1 connected"):
        accept_known(server, new_token(), 1, 0.2)
