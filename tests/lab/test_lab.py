"""A cluster on one machine: real hosts, real links, and nothing left afterwards."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bytelane.errors import InputError, LabError
from bytelane.lab import Lab
from bytelane.lab.messages import Mode, Start
from labs import Heard, members, mode, need, remains, shell

__all__ = ["mode"]

pytestmark = pytest.mark.timeout(60)


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_a_killed_supervisor_is_an_error_and_no_hang(mode: Mode) -> None:
    with Lab(2, "100Mbit", mode=mode) as lab:
        run = lab.start(shell("sleep 60"))
        assert lab._control is not None
        os.kill(lab._control._process.pid, signal.SIGKILL)
        with pytest.raises(LabError, match="ended while a command was running"):
            run.wait(30)
        with pytest.raises(LabError, match=r"gone|ended"):
            lab.run(shell("exit 0"))
    assert remains(os.getpid()) == set()


# Leaving nothing behind


def processes_with(word: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in command:
                found.append(folder.name)
    return found


def test_descendants_end_with_their_rank(mode: Mode) -> None:
    """Also one in a session of its own: at the latest with the lab."""
    word = f"31{os.getpid()}"
    with Lab(2, "100Mbit", mode=mode) as lab:
        lab.run(shell(f"sleep {word} & setsid sleep {word} > /dev/null 2>&1 & sleep 0.2"))
    assert processes_with(word) == []
    assert members(os.getpid()) == set()


def test_nothing_stays_open_in_the_owner(mode: Mode) -> None:
    def cycle() -> None:
        with Lab(2, "100Mbit", mode=mode) as lab:
            lab.run(shell("exit 3"))
            with pytest.raises(LabError):
                lab.run(["./no-such-command"])

    cycle()
    before = (sorted(os.listdir("/proc/self/fd")), threading.active_count())
    cycle()
    assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_an_exception_in_the_block_ends_everything(mode: Mode) -> None:
    with pytest.raises(ZeroDivisionError), Lab(2, "100Mbit", mode=mode) as lab:
        1 / bool(lab.start(shell("sleep 60")).codes)
    assert members(os.getpid()) == set()


def test_an_owner_that_leaves_without_hearing_the_answer_leaves_nothing(mode: Mode) -> None:
    with Lab(2, "100Mbit", mode=mode) as lab:
        assert lab._control is not None
        with open(os.devnull, "wb") as nowhere:
            words = [word.encode() for word in shell("setsid sleep 60 & sleep 60")]
            environment = {name.encode(): value.encode() for name, value in os.environ.items()}
            start = Start(0, words, environment, b"/")
            lab._control._channel.send(start, [nowhere.fileno()] * 3)
            lab._control._channel.close()
    assert remains(os.getpid()) == set()


OWNER = """
import sys
from bytelane.lab import Lab
with Lab(2, "100Mbit", mode=sys.argv[1]) as lab:
    print("open", flush=True)
    lab.run(["sh", "-c", "trap '' TERM; setsid sleep 60 & sleep 60"], grace_s=0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_the_owner_ends_the_lab(mode: Mode, number: int) -> None:
    with owner(mode) as process:
        process.send_signal(number)
        process.wait(30)
        assert remains(process.pid) == set()


@pytest.mark.parametrize("when_s", [0.0, 0.03, 0.06, 0.09, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4])
def test_ten_killed_starts_leave_nothing(when_s: float) -> None:
    """At any moment of being built. ``make soak`` does a thousand."""
    need("namespace")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, "namespace"], stdout=subprocess.PIPE
    ) as process:
        time.sleep(when_s)
        process.kill()
    assert remains(process.pid) == set()


def owner(mode: str) -> subprocess.Popen[str]:
    """A process that has a lab in which a command runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    while len(members(process.pid)) < 3:
        time.sleep(0.02)
    return process


def test_a_fork_of_the_owner_does_not_keep_the_lab_alive(mode: Mode) -> None:
    script = OWNER.replace(
        "    lab.run", "    import os, time\n    os.fork() or time.sleep(60)\n    lab.run"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, mode], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        process.kill()
        process.wait()
        assert remains(process.pid) == set()
        os.killpg(process.pid, signal.SIGKILL)


# The machine's own network


def test_the_machine_sees_nothing_of_it() -> None:
    need("namespace")

    def machine() -> tuple[list[str], str, str]:
        mounts = Path("/proc/self/mounts").read_text()
        return sorted(os.listdir("/sys/class/net")), mounts, Path("/etc/hosts").read_text()

    before = machine()
    with Lab(4, "100Mbit", priority="htb"):
        assert machine() == before
    assert machine() == before


def test_hosts_have_names_and_reach_each_other() -> None:
    need("namespace")
    heard = Heard()
    script = """
import os, socket, time
me, other = int(os.environ["RANK"]), 1 - int(os.environ["RANK"])
server = socket.create_server((f"host{me}", 6000))
while True:
    try:
        client = socket.create_connection((f"host{other}", 6000), timeout=5)
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
# Seen once: the resolver gave the address in the form of IPv6. It is the same.
address = client.getpeername()[0].removeprefix("::ffff:")
print(address, socket.gethostbyaddr(address)[0])
server.accept()
"""
    with Lab(2, "100Mbit") as lab:
        assert lab.run(python(script), output=heard, timeout_s=20) == 0
    assert [heard.of(0), heard.of(1)] == [["10.77.0.2 host1"], ["10.77.0.1 host0"]]


def test_tcp_is_reno_in_a_host_and_as_before_outside() -> None:
    need("namespace")
    file = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    before, heard = file.read_text(), Heard()
    with Lab(2, "100Mbit") as lab:
        lab.run(["cat", str(file)], output=heard)
        assert file.read_text() == before
    assert heard.of(0) == ["reno"]


def test_two_labs_do_not_see_each_other() -> None:
    need("namespace")
    script = python(
        "import os, socket, time; s = socket.create_server((os.environ['MASTER_ADDR'], 6000))"
        " if os.environ['RANK'] == '0' else None; time.sleep(0.3)"
    )
    with Lab(2, "100Mbit") as one, Lab(2, "100Mbit") as other:
        first, second = one.start(script), other.start(script)
        assert (first.wait(20), second.wait(20)) == (0, 0)


# Rates


def qdiscs(lab: Lab) -> list[list[dict[str, Any]]]:
    """What the kernel says about each host's device."""
    heard = Heard()
    assert lab.run(["tc", "-json", "qdisc", "show", "dev", "lane0"], output=heard) == 0
    return [json.loads("".join(heard.of(rank))) for rank in range(lab.workers)]


def test_a_rate_can_change_for_one_host_or_for_all() -> None:
    need("namespace")

    def rates(lab: Lab) -> list[float]:
        return [found[0]["options"]["rate"] for found in qdiscs(lab)]

    with Lab(3, "100Mbit", priority="htb") as lab:
        lab.set_rate("200Mbit", host=1)
        assert rates(lab) == [12.5e6, 25e6, 12.5e6] == lab.rates
        lab.set_rate(5e6)
        assert rates(lab) == [5e6] * 3 == lab.rates


def test_pacing_changes_connections_that_are_open() -> None:
    need("pacing")
    script = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
for rate in (12_500_000, 2_500_000):
    while client.getsockopt(socket.SOL_SOCKET, 47) != rate:
        time.sleep(0.01)
    print(rate)
"""
    heard = Heard()
    with Lab(2, "100Mbit", mode="pacing") as lab:
        run = lab.start(python(script), output=heard)
        while len(heard.lines) < 2:
            assert run.exit_code is None
            time.sleep(0.01)
        lab.set_rate("20Mbit")
        assert run.wait(20) == 0
    assert heard.of(0) == heard.of(1) == ["12500000", "2500000"]


def test_a_change_keeps_the_priorities() -> None:
    need("namespace")
    with Lab(2, "100Mbit", priority="pfifo_fast") as lab:
        lab.set_rate("50Mbit")
        assert [found["kind"] for found in qdiscs(lab)[0]] == ["tbf", "pfifo_fast"]


def test_a_link_is_about_as_fast_as_asked(mode: Mode) -> None:
    """Coarsely: others use this machine too. benchmarks/lab.py measures."""
    with Lab(2, "100Mbit", mode=mode) as lab:
        lab.set_rate("50Mbit")
        for hop in lab.check(0.7):
            assert hop.asked == 6.25e6
            assert 0.7 < hop.ratio < 1.1


def test_the_slower_link_counts() -> None:
    need("namespace")
    with Lab(3, "200Mbit") as lab:
        lab.set_rate("40Mbit", host=2)
        into, at, out_of = lab.check(0.7)
    assert [into.asked, at.asked, out_of.asked] == [25e6, 5e6, 5e6]
    # Both ends have changed: the switch's, which sends to the host, and the host's own.
    for hop in (at, out_of):
        assert 0.7 < hop.ratio < 1.1


@pytest.mark.parametrize("priority", ["pfifo_fast", "htb"])
def test_high_priority_starves_low(priority: Any) -> None:
    need("namespace")
    with Lab(3, "60Mbit", priority=priority) as lab:
        shares = lab.check_priority(0.6)
    places = ["out of a host", "out of the switch"]
    assert [share.where for share in shares] == places[: 1 + (priority == "htb")]
    for share in shares:
        assert share.ratio > 0.9


def test_without_priorities_nobody_is_starved() -> None:
    """The test above can fail."""
    need("namespace")
    with Lab(3, "60Mbit") as lab:
        (share,) = lab.check_priority(0.6)
    assert share.ratio < 0.9


# Misuse


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((1, "1Gbit"), {}, "1 workers are not possible; use 2 to 64"),
        ((65, "1Gbit"), {}, "65 workers"),
        ((2, "10GB"), {}, "not a rate"),
        ((2, "1kbit"), {}, "use 500 kbit/s or more"),
        ((2, float("nan")), {}, "not possible"),
        ((2, float("inf")), {}, "not possible"),
        ((2, "1Gbit"), {"mode": "magic"}, "not one of auto, namespace, pacing"),
        ((2, "1Gbit"), {"priority": "wfq"}, "not one of pfifo_fast, htb"),
        ((2, "1Gbit"), {"mode": "pacing", "priority": "htb"}, "pacing has no queues"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    arguments: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        Lab(*arguments, **options)


def test_a_lab_outside_of_its_block_says_so(mode: Mode) -> None:
    lab = Lab(2, "100Mbit", mode=mode)
    for use in (lambda: lab.run(["true"]), lambda: lab.set_rate("1Gbit"), lab.check):
        with pytest.raises(LabError, match="with block"):
            use()
    with lab, pytest.raises(LabError, match="already open"):
        lab.__enter__()
    with lab:  # and again
        assert lab.run(["true"]) == 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_measured_is_refused(seconds: float) -> None:
    for check in (Lab(2, "100Mbit").check, Lab(2, "100Mbit").check_priority):
        with pytest.raises(InputError, match="cannot be measured"):
            check(seconds)


def test_a_host_that_is_not_there_is_refused(mode: Mode) -> None:
    with Lab(2, "100Mbit", mode=mode) as lab:
        for host in (-1, 2):
            with pytest.raises(InputError, match=f"no host {host}; hosts are 0 to 1"):
                lab.set_rate("1Gbit", host)


def test_auto_falls_back_to_pacing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    need("pacing")
    monkeypatch.setattr("bytelane.lab.control.NAMESPACES", ["--no-such-option"])
    with Lab(2, "100Mbit") as lab:
        assert lab.mode == "pacing"
        assert "unshare" in lab.reason
        assert lab.run(["true"]) == 0
    for options in ({"priority": "htb"}, {"mode": "namespace"}):
        with (
            pytest.raises(LabError, match="no network namespaces here"),
            Lab(2, "1Gbit", **options),
        ):  # type: ignore[arg-type]
            pass


def test_the_machine_is_safe_from_an_unshare_that_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("pacing")
    fake = tmp_path / "unshare"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    for tool in ("ip", "tc"):
        (tmp_path / tool).write_text(f"#!/bin/sh\ntouch {tmp_path}/used\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with (
        pytest.raises(LabError, match="got no network namespace"),
        Lab(2, "1Gbit", mode="namespace"),
    ):
        pass
    assert not (tmp_path / "used").exists()
