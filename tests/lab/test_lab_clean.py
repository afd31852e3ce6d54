"""What a killed lab leaves is found and ended; what is in use, or another's, is left alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.lab import Lab, clean
from bytelane.lab.clean import lab_processes
from bytelane.lab.process_tag import LabName
from labs import command, members, need, process_marked, remains

pytestmark = pytest.mark.timeout(60)

OWNER = """
import sys, time
from bytelane.lab import Lab
with Lab(2, "100Mbit", mode=sys.argv[1]) as lab:
    lab.start(["sh", "-c", "setsid sleep 60 & sleep 60"])
    print(lab._control._process.pid, flush=True)
    time.sleep(60)
"""


@contextmanager
def owner(mode: str) -> Iterator[tuple[int, int]]:
    """A process with a lab: its number, and its supervisor's."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, mode], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        supervisor = int(process.stdout.readline())
        # The shells have the word in their own line too, and must have started theirs.
        while (
            sum(command(pid).split(b"\0")[:2] == [b"sleep", b"60"] for pid in members(process.pid))
            < 4
        ):
            time.sleep(0.02)
        try:
            yield process.pid, supervisor
        finally:
            process.kill()


def is_supervisor(words: bytes) -> bool:
    first, *others = words.split(b"\0")
    return b"bytelane.lab.supervisor" in others and not first.endswith(b"unshare")


def ended_of(owner_pid: int) -> list[str]:
    return sorted(one.command for one in clean().ended if one.owner_pid == owner_pid)


def test_the_children_of_a_killed_supervisor_are_found() -> None:
    need("pacing")
    with owner("pacing") as (pid, supervisor):
        os.kill(pid, signal.SIGSTOP)  # or it would clean up itself
        os.kill(supervisor, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        wait_for_end(supervisor)
        while any(b"setsid" in command(one) for one in members(pid)):
            time.sleep(0.02)  # the commands themselves die with it
        assert ended_of(pid) == ["sleep 60"] * 4
        assert members(pid) == set()


def test_a_supervisor_that_was_stopped_is_found() -> None:
    need("namespace")
    with owner("namespace") as (pid, _):
        (supervisor,) = (one for one in members(pid) if is_supervisor(command(one)))
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        assert members(pid)
        ended_of(pid)
        assert remains(pid) == set()


def wait_for_end(pid: int) -> None:
    """Wait until it has ended, whether or not anybody has asked how."""
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


def test_a_lab_in_use_is_left_alone() -> None:
    need("pacing")
    with Lab(2, "100Mbit", mode="pacing") as lab:
        run = lab.start(["sh", "-c", "sleep 0.5; exit 4"])
        found = clean()
        assert os.getpid() in found.living
        assert [one for one in found.ended if one.owner_pid == os.getpid()] == []
        assert run.wait(20) == 4


def test_an_owner_is_not_mistaken_for_another_with_its_number() -> None:
    mine = LabName.new()
    assert mine.has_owner
    assert not mine._replace(started=mine.started + 1).has_owner
    assert not mine._replace(owner=2**22 + 1).has_owner


@pytest.mark.parametrize(
    "mark",
    ["", "nonsense", "1/2/3", "1/x/pid:[1]/0", "4194305/1/pid:[1]/0"],
    ids=["empty", "no numbers", "too short", "no time", "another world"],
)
def test_a_mark_that_says_nothing_to_us_is_left_alone(mark: str) -> None:
    with process_marked(mark) as process:
        try:
            assert process.pid not in dict(lab_processes())
            clean()
            assert process.poll() is None
        finally:
            process.kill()


def test_a_mark_of_a_dead_owner_is_found() -> None:
    """The test above can fail."""
    gone = LabName.new()._replace(owner=2**22 + 1)
    with process_marked(gone) as process:
        assert ended_of(gone.owner) == ["sleep 60"]
        assert process.wait(10) == -signal.SIGKILL


@given(
    st.builds(LabName, st.integers(1), st.integers(0), st.just(LabName.new().world), st.integers(0))
)
def test_a_name_is_read_as_it_was_written(name: LabName) -> None:
    assert LabName._read(str(name)) == name
