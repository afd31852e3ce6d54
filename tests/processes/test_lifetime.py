"""A command that is killed, at whatever moment and by whatever signal, leaves nothing behind."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bytelane.lab import clean
from bytelane.lifetime import (
    IN_BETWEEN_S,
    LOCK,
    PREFIX,
    remove_abandoned,
    scratch_folder,
    terminable,
)

ENDED_WITHIN_S = 30.0
MARK = "BYTELANE_TEST_LIFETIME"


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for this test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_folder_is_this_users_alone_and_goes_away(temp: Path) -> None:
    with scratch_folder() as folder:
        assert folder.parent == temp
        assert folder.stat().st_mode & 0o777 == 0o700
        assert remove_abandoned() == []  # it is in use
    assert list(temp.iterdir()) == []


def abandoned(temp: Path, name: str) -> Path:
    folder = temp / f"{PREFIX}{name}"
    (folder / "below").mkdir(parents=True)
    (folder / LOCK).touch()
    (folder / "below" / "weights.pt").write_bytes(b"many")
    return folder


def test_the_folder_of_a_killed_command_is_removed_by_the_next(temp: Path) -> None:
    left = abandoned(temp, "one")
    with scratch_folder() as folder:
        assert list(temp.iterdir()) == [folder]
    assert not left.exists()


def test_cleaning_up_after_labs_removes_such_folders_too(temp: Path) -> None:
    left = abandoned(temp, "one")
    assert clean().folders == (str(left),)
    assert clean().folders == ()


def test_a_folder_whose_owner_lives_is_left_alone(temp: Path) -> None:
    used, left = abandoned(temp, "used"), abandoned(temp, "left")
    with (used / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove_abandoned() == [left]
    assert remove_abandoned() == [used]


def test_what_only_has_such_a_name_is_left_alone(temp: Path, tmp_path: Path) -> None:
    precious = abandoned(tmp_path, "precious")
    (temp / f"{PREFIX}link").symlink_to(precious)
    (temp / f"{PREFIX}file").write_text("not a folder")
    (temp / "bytelane-results").mkdir()
    (temp / f"{PREFIX}new").mkdir()  # being made: not locked yet
    assert remove_abandoned() == []
    assert (precious / "below" / "weights.pt").exists()
    long_ago = time.time() - 2 * IN_BETWEEN_S
    os.utime(temp / f"{PREFIX}new", (long_ago, long_ago))
    assert remove_abandoned() == [temp / f"{PREFIX}new"]


def test_a_link_inside_an_abandoned_folder_is_not_followed(temp: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (abandoned(temp, "one") / "link").symlink_to(tmp_path / "precious")
    assert len(remove_abandoned()) == 1
    assert (tmp_path / "precious" / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_folder_is_left_alone(temp: Path) -> None:
    os.chown(abandoned(temp, "theirs"), 65534, 65534)
    assert remove_abandoned() == []


WAITING = """
import time
from pathlib import Path
from bytelane.lifetime import end_with_owner
"""


def test_a_process_ends_with_the_owner_of_its_folder(temp: Path) -> None:
    with scratch_folder() as folder:
        told = f"end_with_owner(Path({str(folder)!r})); print('told', flush=True); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", WAITING + told], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"told\n"
        time.sleep(0.2)
        assert child.poll() is None
    with child:
        assert child.wait(10) == 1


def interrupted(ended: list[str]) -> None:
    with terminable():
        signal.raise_signal(signal.SIGHUP)  # which the caller has had ignored, as nohup does
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            ended.append("in order")


def test_a_signal_ends_the_block_once_and_an_ignored_one_stays_ignored() -> None:
    ended: list[str] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as end:
            interrupted(ended)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (end.value.code, ended) == (128 + signal.SIGTERM, ["in order"])


# The commands themselves

SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(100000):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""
MANY = ",".join(map(str, range(2, 200)))
LATENCIES = ",".join(f"{k}us" for k in range(1, 200))
ON_ALL_CORES = ["--executor", "processes"]
COMMANDS = {
    "profile-network": ["profile-network", "--workers", "2", "--seconds", "60"],
    "try": ["try", "script.py", "--here", "--workers", "2", "--iterations", "90000"],
    "bench": ["bench", "resnet50", "--workers", "2", "--rate", "500Mbit", "--iterations", "99"],
    "sweep": ["sweep", "vgg16", "--workers", MANY, "--latency", LATENCIES, *ON_ALL_CORES],
}
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL]
KILLED = [
    ("profile-network", signal.SIGTERM),
    ("profile-network", signal.SIGKILL),
    ("try", signal.SIGHUP),
    ("try", signal.SIGKILL),
    ("bench", signal.SIGTERM),
    ("bench", signal.SIGKILL),
    ("sweep", signal.SIGINT),
    ("sweep", signal.SIGKILL),
]


def marked(mark: str) -> list[int]:
    """Return the processes that carry this mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and f"{MARK}={mark}".encode() in (
                folder / "environ"
            ).read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


Command = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def command(temp: Path, tmp_path: Path) -> Iterator[Command]:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "TMPDIR": str(temp), MARK: str(tmp_path)}
    environment.pop("COVERAGE_PROCESS_CONFIG", None)  # writing it down would delay their ends

    def start(name: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "bytelane", *COMMANDS[name]],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    yield start
    for pid in marked(str(tmp_path)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("name", "number"), KILLED)
def test_a_killed_command_leaves_neither_processes_nor_folders(
    command: Command, temp: Path, tmp_path: Path, name: str, number: signal.Signals
) -> None:
    with command(name) as process:
        while len(marked(str(tmp_path))) < 2:  # it has started something
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(random.uniform(0.0, 2.0))
        assert process.poll() is None
        process.send_signal(number)  # to it alone, as a supervisor does
        process.wait(ENDED_WITHIN_S + 20)
    deadline = time.monotonic() + ENDED_WITHIN_S
    while (left := marked(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    if number == signal.SIGKILL:
        remove_abandoned()
    assert [path.name for path in temp.iterdir()] == []
