"""A command on every host: what it is told, what is heard of it, and how it ends."""

import os
import sys
from collections.abc import Iterator

import pytest

from bytelane.errors import InputError, LabError, LabTimeout
from bytelane.lab import Lab
from labs import Heard, need, shell

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module", params=["namespace", "pacing"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three hosts, in each mode that works here."""
    need(request.param)
    with Lab(3, "100Mbit", mode=request.param) as lab:
        yield lab


# What it is told


def test_every_rank_has_torchruns_variables(lab: Lab) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"]
    heard = Heard()
    assert lab.run(shell("echo " + " ".join(f"${name}" for name in names)), output=heard) == 0
    for rank in range(3):
        assert heard.of(rank) == [f"{rank} 3 0 1 {rank} {lab.addresses[0]}"]


def test_runs_at_the_same_time_have_different_master_ports(lab: Lab) -> None:
    first, second = Heard(), Heard()
    one = lab.start(shell("echo $MASTER_PORT; sleep 0.3"), output=first)
    assert lab.run(shell("echo $MASTER_PORT"), output=second) == 0
    assert one.wait() == 0
    assert first.of(0) == first.of(1)
    assert first.of(0) != second.of(0)


def test_given_variables_win(lab: Lab) -> None:
    heard = Heard()
    lab.run(shell("echo $COLOUR $RANK"), environment={"COLOUR": "blue"}, output=heard)
    assert heard.of(1) == ["blue 1"]


def test_words_that_are_no_text_arrive_as_they_are(lab: Lab) -> None:
    heard = Heard()
    lab.run(["sh", "-c", 'printf %s "$1" | od -An -tx1', "sh", "\udcff\udc80"], output=heard)
    assert heard.of(0) == [" ff 80"]


def test_it_runs_as_the_same_user_and_in_the_same_folder(lab: Lab) -> None:
    heard = Heard()
    lab.run(shell("id -u; pwd"), output=heard)
    assert heard.of(0) == [str(os.getuid()), os.getcwd()]


def test_proc_and_process_numbers_agree(lab: Lab) -> None:
    heard = Heard()
    script = "import os; print(os.readlink('/proc/self') == str(os.getpid()))"
    lab.run([sys.executable, "-c", script], output=heard)
    assert heard.of(0) == ["True"]


def test_no_privilege_is_handed_on(lab: Lab) -> None:
    heard = Heard()
    lab.run(["grep", "CapAmb", "/proc/self/status"], output=heard)
    assert heard.of(0) == ["CapAmb:\t0000000000000000"]


def test_no_file_is_handed_on(lab: Lab) -> None:
    heard = Heard()
    lab.run(shell("ls /proc/self/fd"), output=heard)
    assert heard.of(0) == ["0", "1", "2", "3"]  # 3 is the folder that ls reads


def test_signals_do_what_they_always_do(lab: Lab) -> None:
    """A command that is born ignoring SIGTERM could not be asked to end."""
    heard = Heard()
    lab.run(["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"], output=heard)
    ordinary = 2**31 - 1  # the first 31; a C library may have plans for those above
    assert [int(line.split()[1], 16) & ordinary for line in heard.of(0)] == [0, 0]


# What is heard of it


def test_lines_are_told_apart_by_rank_and_stream(lab: Lab) -> None:
    heard = Heard()
    lab.run(shell("echo one; echo two >&2; printf three; printf '\\200' >&2"), output=heard)
    for rank in range(3):
        assert heard.of(rank) == ["one", "three"]
        assert heard.of(rank, "err") == ["two", "\N{REPLACEMENT CHARACTER}"]


def test_much_output_is_complete(lab: Lab) -> None:
    heard = Heard()
    assert lab.run(shell("seq 30000"), output=heard) == 0
    for rank in range(3):
        assert heard.of(rank) == [str(number) for number in range(1, 30001)]


def test_a_daemon_that_holds_the_output_does_not_hold_the_run(lab: Lab) -> None:
    heard = Heard()
    assert lab.run(shell("setsid sleep 60 & echo done"), output=heard, timeout_s=20) == 0
    assert heard.of(0) == ["done"]


# How it ends


def test_the_exit_code_is_that_of_the_rank_that_failed_first(lab: Lab) -> None:
    script = 'case $RANK in 1) exit 7;; *) trap "exit 9" TERM; sleep 60 & wait;; esac'
    run = lab.start(shell(script))
    assert run.wait(30) == 7
    assert run.exit_code == 7
    assert next(iter(run.codes)) == 1
    assert set(run.codes) == {0, 1, 2}


def test_a_signal_counts_as_in_a_shell(lab: Lab) -> None:
    assert lab.run(shell("[ $RANK = 0 ] && kill -9 $$; sleep 60")) == 128 + 9


def test_who_does_not_end_in_time_is_killed(lab: Lab) -> None:
    with pytest.raises(LabTimeout, match=r"did not end within 0\.3 s"):
        lab.run(shell("trap '' TERM; sleep 60 & wait; sleep 60"), timeout_s=0.3, grace_s=0.3)
    assert lab.run(shell("exit 0")) == 0  # the lab is still good


def test_ranks_are_asked_before_they_are_killed(lab: Lab) -> None:
    heard = Heard()
    run = lab.start(shell("trap 'echo bye; exit 0' TERM; echo here; sleep 60 & wait"), output=heard)
    while len(heard.lines) < 3:
        assert run.exit_code is None
    run.stop()
    assert run.codes == {0: 0, 1: 0, 2: 0}
    assert heard.of(2) == ["here", "bye"]


def test_stopping_what_has_ended_does_nothing(lab: Lab) -> None:
    run = lab.start(shell("exit 3"))
    assert run.wait() == 3
    run.stop()
    assert run.wait() == 3


def test_a_command_that_is_not_there_is_named(lab: Lab) -> None:
    with pytest.raises(LabError, match="no-such-command"):
        lab.run(["./no-such-command"])


def test_an_empty_command_is_refused(lab: Lab) -> None:
    with pytest.raises(InputError, match="no command"):
        lab.run([])


def test_an_environment_that_is_too_large_is_refused(lab: Lab) -> None:
    with pytest.raises(LabError, match="too many"):
        lab.run(shell("exit 0"), environment={"HUGE": "x" * 2_000_000})
    assert lab.run(shell("exit 0")) == 0


def test_a_listener_that_raises_stops_the_run(lab: Lab) -> None:
    def listener(rank: int, stream: str, line: str) -> None:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        lab.run(shell("echo hello; sleep 60"), output=listener)
