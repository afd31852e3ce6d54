"""``bytelane lab`` as people use it: exit codes, output, signals, and sentences for mistakes."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import bytelane
from bytelane.cli import main
from bytelane.cli.lab_output import print_check
from bytelane.lab import Hop, Lab
from bytelane.lab.process_tag import LabName
from labs import need, process_marked, remains

pytestmark = pytest.mark.timeout(90)

LAB = [sys.executable, "-m", "bytelane", "lab"]


class Done(NamedTuple):
    """What came of a command."""

    returncode: int
    stdout: str
    stderr: str


Verb = Callable[..., Done]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verb:
    """``bytelane lab``, in this process."""

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["bytelane", "lab", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(
            ended.value.code if isinstance(ended.value.code, int) else 0, *capsys.readouterr()
        )

    return run


# run


def test_a_command_runs_on_every_host_and_its_exit_code_is_kept(lab: Verb) -> None:
    need("pacing")
    script = "echo from $RANK of $WORLD_SIZE; sleep 0.2; exit $((RANK * 5))"
    done = lab("run", "--rate", "100Mbit", "--no-check", "--", "sh", "-c", script)
    assert done.returncode == 5
    assert sorted(done.stdout.splitlines()) == ["[0] from 0 of 2", "[1] from 1 of 2"]
    assert done.stderr.startswith("bytelane: 2 hosts, 100 Mbit/s, mode ")


def test_the_commands_own_options_need_no_separator(lab: Verb) -> None:
    need("pacing")
    done = lab("run", "--rate", "1Gbit", "--no-check", "printf", "%s %s", "--help", "--rate")
    assert (done.returncode, done.stdout) == (0, "[0] --help --rate\n[1] --help --rate\n")


def test_links_that_are_not_right_are_refused_when_asked_to(lab: Verb) -> None:
    need("namespace")
    done = lab("run", "--rate", "900Gbit", "--check", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (2, "")
    assert "of what was asked; bytelane lab check measures what" in done.stderr


def test_links_that_are_not_right_are_only_told_otherwise(lab: Verb) -> None:
    need("namespace")
    done = lab("run", "--rate", "900Gbit", "--", "echo", "anyway")
    assert (done.returncode, done.stdout) == (0, "[0] anyway\n[1] anyway\n")
    assert "bytelane: warning: from host" in done.stderr


def test_a_timeout_has_its_exit_code(lab: Verb) -> None:
    need("pacing")
    done = lab("run", "--rate", "1Gbit", "--no-check", "--timeout", "300ms", "--", "sleep", "60")
    assert done.returncode == 124
    assert done.stderr.endswith("bytelane: the command did not end within 0.3 s, and was stopped\n")


def test_pacing_says_what_it_is_not(lab: Verb) -> None:
    need("pacing")
    done = lab("run", "--rate", "1Gbit", "--mode", "pacing", "--no-check", "--", "true")
    assert "each connection is limited, not the link; there are no priorities" in done.stderr


def test_a_schedule_is_followed(lab: Verb, tmp_path: Path) -> None:
    need("namespace")
    (tmp_path / "s.csv").write_text("at_s,rate\n0.1,77Mbit\n")
    script = 'until tc qdisc show dev lane0 | grep -o "rate 77Mbit"; do sleep 0.05; done'
    options = ["--schedule", str(tmp_path / "s.csv"), "--timeout", "20s", "--no-check"]
    done = lab("run", "--rate", "100Mbit", *options, "--", "sh", "-c", script)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] rate 77Mbit", "[1] rate 77Mbit"]


def test_traffic_beside_a_command(lab: Verb, tmp_path: Path) -> None:
    need("namespace")
    (tmp_path / "sizes.csv").write_text("bytes,cumulative\n1000,0\n50000,1\n")
    options = ["--rate", "100Mbit", "--no-check", "--priority", "htb", "--traffic", "0.2"]
    options += ["--traffic-sizes", str(tmp_path / "sizes.csv"), "--traffic-band", "high"]
    done = lab("run", *options, "--traffic-out", str(tmp_path / "out.json"), "--", "sleep", "0.7")
    assert (done.returncode, done.stdout) == (0, "")
    found = json.loads((tmp_path / "out.json").read_text())
    assert [one["name"] for one in found["classes"]] == ["small", "medium", "large", "all"]
    assert len(found["flows"]) == found["classes"][0]["flows"] > 10


def test_training_uses_the_links(lab: Verb) -> None:
    """Gloo finds its way: the all-reduce of 4 MB takes what 100 Mbit/s allow, not loopback's."""
    need("namespace")
    pytest.importorskip("torch")
    script = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1_000_000)
dist.all_reduce(ones[:10])
began = time.monotonic()
dist.all_reduce(ones)
if dist.get_rank() == 0:
    print(time.monotonic() - began > 0.25, ones[-1].item())
dist.barrier()
dist.destroy_process_group()
"""
    options = ["--rate", "100Mbit", "--no-check", "--timeout", "60s"]
    done = lab("run", *options, "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (0, "[0] True 2.0\n"), done.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_all_of_it_gently(number: int, code: int) -> None:
    need("pacing")
    script = "trap 'echo bye; exit 0' TERM; echo here; sleep 60 & wait"
    command = [*LAB, "run", "--rate", "1Gbit", "--no-check", "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] here\n", "[1] here\n"]
        process.send_signal(number)
        assert sorted(process.stdout) == ["[0] bye\n", "[1] bye\n"]
        assert process.wait(30) == code
    assert remains(process.pid) == set()


def test_a_second_ctrl_c_does_not_wait() -> None:
    need("pacing")
    command = [*LAB, "run", "--rate", "1Gbit", "--no-check", "--", "sh", "-c"]
    with subprocess.Popen(
        [*command, "trap '' TERM; echo here; sleep 60; sleep 60"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(4) == 130  # the grace is 5 s
    assert remains(process.pid) == set()


def test_a_reader_that_leaves_ends_it() -> None:
    need("pacing")
    command = [*LAB, "run", "--rate", "1Gbit", "--no-check", "--", "sh", "-c"]
    with subprocess.Popen(
        [*command, "while :; do echo more; sleep 0.01; done"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 1
        assert "Traceback" not in process.stderr.read()
    assert remains(process.pid) == set()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rate", "fast", "--", "true"], "'fast' is not a rate"),
        (["--rate", "1kbit", "--", "true"], "use 500 kbit/s or more"),
        (["--rate", "1Gbit", "--workers", "1", "--", "true"], "1 workers are not possible"),
        (["--rate", "1Gbit", "--mode", "best", "--", "true"], "not one of auto, namespace, pacing"),
        (["--rate", "1Gbit", "--priority", "x", "--", "true"], "not one of pfifo_fast, htb"),
        (
            ["--rate", "1Gbit", "--mode", "pacing", "--priority", "htb", "--", "true"],
            "pacing has no queues",
        ),
        (["--rate", "1Gbit", "--timeout", "5", "--", "true"], "'5' has no unit"),
        (
            ["--rate", "1Gbit", "--schedule", "/no/file", "--", "true"],
            "/no/file: there is no such file",
        ),
        (["--rate", "1Gbit", "--traffic-band", "high", "--", "true"], "without --traffic"),
        (["--rate", "1Gbit", "--traffic-seed", "5", "--", "true"], "without --traffic"),
        (
            ["--rate", "1Gbit", "--mode", "pacing", "--no-check", "--traffic", "1", "--", "true"],
            "no shared links",
        ),
        (["--rate", "1Gbit", "--no-check", "--", "./nothing"], "cannot start ./nothing"),
    ],
)
def test_a_mistake_is_one_sentence(lab: Verb, words: list[str], sentence: str) -> None:
    need("pacing")
    done = lab("run", *words)
    assert done.returncode == 2
    *told, error = done.stderr.splitlines()
    assert error.startswith("bytelane: error: ")
    assert sentence in error
    assert all(line.startswith("bytelane: ") for line in told)


# check, traffic, clean


def test_check_tells_each_link_and_the_share_of_priorities(lab: Verb) -> None:
    need("namespace")
    options = ["--workers", "3", "--rate", "50Mbit", "--priority", "htb", "--seconds", "0.5"]
    done = lab("check", *options, "--json")
    assert done.returncode in (0, 1)
    found = json.loads(done.stdout)
    assert (found["workers"], found["mode"]) == (3, "namespace")
    assert [(one["source"], one["destination"]) for one in found["links"]] == [
        (0, 1),
        (1, 2),
        (2, 0),
    ]
    assert {one["asked_bit_per_s"] for one in found["links"]} == {50e6}
    assert (found["trusted_bit_per_s"] == 50e6) == (done.returncode == 0)
    assert [one["where"] for one in found["priority"]] == ["out of a host", "out of the switch"]


def test_check_says_when_a_rate_cannot_be_trusted(lab: Verb) -> None:
    need("pacing")
    done = lab("check", "--rate", "900Gbit", "--seconds", "0.4")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("this machine cannot be trusted with 900 Gbit/s")


def hops(asked_mbit: float, *ratios: float) -> list[Hop]:
    rate = asked_mbit * 1e6 / 8
    return [Hop(i, i + 1, rate, rate * ratio, "namespace") for i, ratio in enumerate(ratios)]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([hops(100, 0.95, 0.95), hops(200, 0.96)], "trust this machine up to 200 Mbit/s {}"),
        (
            [hops(100, 0.95), hops(200, 0.96), hops(500, 0.95, 0.4)],
            "trust this machine up to 200 Mbit/s {}, not beyond",
        ),
        ([hops(100, 0.4)], "this machine cannot be trusted with 100 Mbit/s {}"),
        ([hops(100, 1.1)], "this machine cannot be trusted with 100 Mbit/s {}"),
    ],
)
def test_the_verdict_is_the_highest_rate_before_the_first_wrong_one(
    found: list[list[Hop]], verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_check(Lab(4, "1Gbit"), found, [])
    *_, last = capsys.readouterr().out.splitlines()
    assert last == verdict.format("with 4 hosts in mode namespace")


def test_a_sweep_shows_the_slowest_link_of_each_rate(capsys: pytest.CaptureFixture[str]) -> None:
    print_check(Lab(2, "1Gbit"), [hops(100, 0.95, 0.96), hops(1000, 0.5, 0.95)], [])
    assert capsys.readouterr().out.splitlines()[:3] == [
        "asked       slowest link           ratio  right",
        "100 Mbit/s     95 Mbit/s  0.950 to 0.960    yes",
        "1 Gbit/s      500 Mbit/s  0.500 to 0.950     no",
    ]


@pytest.mark.parametrize(
    ("ratio", "is_right"), [(0.89, False), (0.9, True), (1.01, True), (1.02, False)]
)
def test_a_link_is_right_within_six_percent_of_what_tcp_can_get(
    ratio: float, is_right: bool
) -> None:
    (hop,) = hops(100, ratio)
    assert hop.is_right is is_right


def test_traffic_prints_completion_times(lab: Verb) -> None:
    need("namespace")
    options = ["--workers", "2", "--rate", "200Mbit", "--flows", "20", "--seconds", "1"]
    done = lab("traffic", *options, "--margin", "0")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[:5]] == [
        "flows",
        "small",
        "medium",
        "large",
        "all",
    ]


def test_traffic_needs_to_know_how_much(lab: Verb) -> None:
    need("namespace")
    done = lab("traffic", "--rate", "200Mbit")
    assert done.returncode == 2
    assert "either a load or flows per second" in done.stderr


def test_clean_ends_what_was_left_and_says_so(lab: Verb) -> None:
    need("pacing")
    gone = LabName.new()._replace(owner=2**22 + 1)
    with process_marked(gone) as process:
        done = lab("clean")
        assert process.wait(10) == -signal.SIGKILL
    assert done.returncode == 0
    assert f"ended {process.pid}, left by {gone.owner}: sleep 60\n" in done.stdout
    with process_marked(gone) as process:
        (ended,) = (
            one
            for one in json.loads(lab("clean", "--json").stdout)["ended"]
            if one["pid"] == process.pid
        )
    assert ended == {"pid": process.pid, "owner_pid": gone.owner, "command": "sleep 60"}


def test_clean_names_labs_in_use(lab: Verb) -> None:
    need("pacing")
    with Lab(2, "1Gbit", mode="pacing") as mine:
        assert str(os.getpid()) in lab("clean").stdout
        assert mine.run(["true"]) == 0


# An ordinary user


def as_nobody(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a user without any privilege, with a Python that this user may read."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become another user, with setpriv")
    nobody = pwd.getpwnam("nobody")
    become = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    become += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    become += ["sh", "-c", 'exec "$@"', "sh"]  # setpriv itself still runs what only root may read
    paths = [str(Path(bytelane.__file__).parents[1]), sysconfig.get_path("platlib")]
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(paths), "HOME": str(folder)}
    for python in (
        sys.executable,
        f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}",
    ):
        command = [*become, python, "-m", "bytelane"]
        usable = subprocess.run(
            [*command, "--version"], env=environment, cwd="/", capture_output=True, timeout=30
        )
        if usable.returncode == 0:
            return subprocess.run(
                [*command, *words],
                env=environment,
                cwd="/",
                capture_output=True,
                text=True,
                timeout=60,
            )
    pytest.skip("no Python here that an ordinary user may read")


@pytest.mark.parametrize("mode", ["namespace", "pacing"])
def test_an_ordinary_user_has_a_lab_too(mode: str, tmp_path: Path) -> None:
    options = ["--rate", "50Mbit", "--mode", mode, "--workers", "2"]
    script = "id -un; grep CapEff /proc/self/status"
    done = as_nobody(
        "lab", "run", *options, "--no-check", "--", "sh", "-c", script, folder=tmp_path
    )
    if "no network namespaces here" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == sorted(
        f"[{rank}] {line}" for rank in range(2) for line in ("nobody", "CapEff:\t" + "0" * 16)
    )


def test_an_ordinary_user_has_priorities_too(tmp_path: Path) -> None:
    options = [
        "--rate",
        "50Mbit",
        "--priority",
        "htb",
        "--workers",
        "3",
        "--seconds",
        "0.5",
        "--json",
    ]
    done = as_nobody("lab", "check", *options, folder=tmp_path)
    if "no network namespaces here" in done.stderr:
        pytest.skip(done.stderr)
    assert [one["high_percent"] > 90 for one in json.loads(done.stdout)["priority"]] == [True, True]
