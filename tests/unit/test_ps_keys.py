"""Keys are written once, for nobody else to read; addresses without them stay on this host."""

import os
import stat
import sys
from pathlib import Path

import pytest

from bytelane.errors import InputError, MissingExtra
from bytelane.runtime.ps.address import Address, parse_address, require_own, require_private
from bytelane.runtime.ps.keys import Keys, keygen, load_keys
from bytelane.runtime.ps.process import main, serve

SOME = Keys(b"a", b"b", b"c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keygen(tmp_path / "keys")
    return tmp_path / "keys"


def test_the_two_ends_know_each_other(folder: Path) -> None:
    server, worker = load_keys(folder, "server"), load_keys(folder, "worker")
    assert (server.peer, worker.peer) == (worker.public, server.public)
    assert len({server.public, server.secret, worker.public, worker.secret}) == 4


def test_only_the_owner_can_read_a_secret_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        paths = keygen(tmp_path / "keys")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes == {
        "server.public": 0o644,
        "server.secret": 0o600,
        "worker.public": 0o644,
        "worker.secret": 0o600,
    }
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["server.public", "worker.secret"])
def test_keys_are_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(InputError, match="not overwritten"):
        keygen(tmp_path)
    assert os.listdir(tmp_path) == [name]


def test_no_key_is_repeated_in_a_message_or_a_log(folder: Path) -> None:
    keys = load_keys(folder, "server")
    assert keys.secret.decode() not in f"{keys} {keys!r}"


def test_each_end_needs_only_its_own_secret(folder: Path) -> None:
    (folder / "server.secret").unlink()
    load_keys(folder, "worker")
    with pytest.raises(InputError, match=r"no key .*server.secret; make keys with bytelane ps"):
        load_keys(folder, "server")


@pytest.mark.parametrize(
    ("name", "mode", "reason"),
    [
        ("server.secret", 0o640, "other users can use .* chmod 600"),
        ("server.secret", 0o604, "other users can use .* chmod 600"),
        ("server.public", 0o664, "other users can change .* chmod 644"),
        ("worker.public", 0o646, "other users can change .* chmod 644"),
    ],
)
def test_keys_that_others_could_use_or_exchange_are_refused(
    folder: Path, name: str, mode: int, reason: str
) -> None:
    (folder / name).chmod(mode)
    with pytest.raises(InputError, match=reason):
        load_keys(folder, "server")


@pytest.mark.parametrize("content", [b"", b"x" * 39, b"x" * 41, b"\xff" * 40, b"~" * 40])
def test_a_file_without_a_key_is_refused(folder: Path, content: bytes) -> None:
    (folder / "worker.public").write_bytes(content)
    with pytest.raises(InputError, match=r"worker.public holds no key"):
        load_keys(folder, "server")


def test_a_public_key_of_another_pair_is_refused(folder: Path) -> None:
    (folder / "server.public").write_bytes((folder / "worker.public").read_bytes())
    with pytest.raises(InputError, match="do not belong together"):
        load_keys(folder, "server")


def test_a_pipe_is_no_key_and_nobody_waits_for_it(folder: Path) -> None:
    (folder / "server.secret").unlink()
    os.mkfifo(folder / "server.secret", 0o600)
    with pytest.raises(InputError, match="is not a file"):
        load_keys(folder, "server")


def test_an_address_has_two_endpoints() -> None:
    assert parse_address("10.0.0.5:5600").up == "tcp://10.0.0.5:5600"
    assert parse_address("[::1]:5600").down == "tcp://[::1]:5601"
    assert str(parse_address("[::1]:5600")) == "[::1]:5600"
    assert require_own(parse_address("localhost:1")) == Address("127.0.0.1", 1)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "host", "host:", ":80", "host:x", "host:-1", "host:65535", "host:99999"),
        *("::1:80", "*:80", "a;b:80", "a b:80", "a\n:80", "host:٣", "[host]:80", "tcp://host:80"),
    ],
)
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(InputError):
        parse_address(text)


def test_a_server_listens_on_an_address_not_on_a_name() -> None:
    with pytest.raises(InputError, match="is not an IP address to listen on"):
        require_own(parse_address("example.org:80"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_loopback_address_needs_no_keys(host: str) -> None:
    address = Address(host, 80)
    assert address.is_loopback
    require_private(address, None, plaintext=False)  # does not raise


@pytest.mark.parametrize("host", ["10.0.0.5", "0.0.0.0", "::", "gpu7", "localhost.example.org"])
def test_any_other_address_needs_keys_or_a_clear_word(host: str) -> None:
    with pytest.raises(InputError, match=r"bytelane ps keygen FOLDER .*plaintext=True"):
        require_private(Address(host, 80), None, plaintext=False)
    require_private(Address(host, 80), SOME, plaintext=False)
    require_private(Address(host, 80), None, plaintext=True)


def test_keys_and_plaintext_contradict_each_other() -> None:
    with pytest.raises(InputError, match="contradict"):
        require_private(Address("10.0.0.5", 80), SOME, plaintext=True)


def test_without_pyzmq_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    for refused in (lambda: keygen(tmp_path / "keys"), lambda: serve("127.0.0.1:0")):
        with pytest.raises(MissingExtra, match=r"pip install 'bytelane\[ps\]'"):
            refused()
    assert not (tmp_path / "keys").exists()
    assert main(["--listen", "127.0.0.1:0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
