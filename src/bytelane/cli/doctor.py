"""``bytelane doctor``: what works on this machine, and the command that mends what does not.

A check tries the thing itself: being installed is not yet working. What could crash, hang or leave
something behind happens in a process of its own with a time limit, in a temporary folder or in a
network namespace that ends with the process. The one trace: the kernel may load a module for a
device or queue that is tried.
"""

import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import typer

from bytelane.cli.options import Json

Status = Literal["ok", "missing", "limited"]

_SIM = "pip install 'bytelane[sim]'"
_PLOT = "pip install 'bytelane[plot]'"
_TORCH = "pip install 'bytelane[torch]'"
_IPROUTE = "sudo apt install iproute2"
_PYTHON = "sudo apt install python3.11-venv && python3.11 -m venv .venv"
_LINUX = "in a Linux container: docker run --privileged -it python:3.12"
_INTERFACE = "name the network interface that gloo shall use: export GLOO_SOCKET_IFNAME=lo"

_OLDEST_PYTHON = (3, 11)
_OLDEST_TORCH = (2, 6)
_PACING_RATE = 47  # SO_MAX_PACING_RATE, which Python does not name
_QUEUES = {
    "tbf": "root tbf rate 10mbit burst 32kb latency 50ms",
    "htb": "root htb",
    "pfifo_fast": "root pfifo_fast",
    "ingress": "ingress",
    "netem": "root netem delay 1ms",
    "prio": "root prio",
    "fq": "root fq",
}
_DEVICES = {"veth": "veth peer name lane1", "bridge": "bridge"}
# What keeps an ordinary user from a namespace: the switch, the value that forbids, one that allows.
_SWITCHES = [
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),  # Ubuntu's default since 24.04
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
]
# The host's own devices are never touched, not even if unshare should do nothing; and a namespace
# in which one may do nothing (Ubuntu's, for an ordinary user) is none.
_GUARD = """
[ "$(readlink /proc/self/ns/net)" != "$1" ] || { echo 'got no namespace' >&2; exit 1; }
ip link set lo up || exit 1
trap 'exit 0' EXIT
"""
_NUMBA = "assert numba.njit(lambda x: x + 1)(1) == 2"
_GLOO = """
import sys, torch, torch.distributed as dist
if not (dist.is_available() and dist.is_gloo_available()):
    print("absent")
    sys.exit()
dist.init_process_group("gloo", store=dist.FileStore("store", 1), rank=0, world_size=1)
ones = torch.ones(4)
dist.all_reduce(ones)
dist.destroy_process_group()
if ones.tolist() != [1.0] * 4:
    sys.exit(f"all-reduce of ones gave {ones.tolist()}")
print("works")
"""


class Check(NamedTuple):
    """Something to try: ``probe`` returns what it found, and raises when that is not enough."""

    name: str
    purpose: str
    mend: str
    probe: Callable[[], str]
    required: bool = False


class Finding(NamedTuple):
    """What came of a check; the fields are the keys of the JSON."""

    name: str
    status: Status
    detail: str
    mend: str | None


class _ProbeError(Exception):
    """A probe's bad news; without a mend of its own the check's is right."""

    def __init__(self, detail: str, mend: str | None = None, status: Status = "missing") -> None:
        super().__init__(detail)
        self.mend = mend
        self.status = status


def doctor(as_json: Json = False) -> None:
    """Check what works on this machine, and say how to mend what does not.

    Exit code 1 only if something is missing without which nothing works at all.
    """
    findings = [examine(check) for check in CHECKS]
    lacking = [
        check.name
        for check, finding in zip(CHECKS, findings, strict=True)
        if check.required and finding.status != "ok"
    ]
    if as_json:
        checks = [finding._asdict() for finding in findings]
        print(json.dumps({"checks": checks, "ok": not lacking}, indent=2))
    else:
        _print_text(findings, lacking)
    if lacking:
        raise typer.Exit(1)


def examine(check: Check) -> Finding:
    """Try one thing. A probe that crashes is a finding too."""
    try:
        return Finding(check.name, "ok", f"{check.probe()} ({check.purpose})", None)
    except _ProbeError as fault:
        status, detail, mend = fault.status, str(fault), fault.mend
    except Exception as error:
        status, detail, mend = "missing", f"{type(error).__name__}: {error}", None
    return Finding(check.name, status, f"{detail} ({check.purpose})", mend or check.mend)


def _python() -> str:
    if sys.version_info < _OLDEST_PYTHON:
        raise _ProbeError(f"{platform.python_version()}, older than 3.11")
    return platform.python_version()


@cache
def _torch() -> str:
    version = _import("torch", _TORCH)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _OLDEST_TORCH:
        newer = _TORCH.replace("install", "install --upgrade")
        raise _ProbeError(f"{version}, older than 2.6", newer, "limited")
    return version


def _gloo() -> str:
    _torch()  # without it there is nothing to try, and its mend is the right one
    if _run_python(_GLOO) != "works":
        raise _ProbeError("this torch was built without it", "pip install --force-reinstall torch")
    return "an all-reduce works"


def _pacing() -> str:
    _need_linux()
    asked = 1_000_000
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5) as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, _PACING_RATE, asked)
        kept = client.getsockopt(socket.SOL_SOCKET, _PACING_RATE)
    if kept != asked:
        raise _ProbeError(f"a socket was asked for {asked} B/s and kept {kept}")
    return "sockets take a rate"


def _namespaces() -> str:
    tries = [
        f"ip link add lane0 type {device} && echo {name}; ip link del lane0"
        for name, device in _DEVICES.items()
    ]
    way, made = _in_namespace("\n".join(tries))
    absent = [name for name in _DEVICES if name not in made]
    if absent:
        raise _ProbeError(f"{way}, but without {', '.join(absent)}", _load(absent), "limited")
    return f"{way}, with veth and bridge"


def _queues() -> str:
    _need_tool("tc", _IPROUTE)
    tries = [
        f"tc qdisc add dev lo {queue} && echo {name}; tc qdisc del dev lo {queue.split()[0]}"
        for name, queue in _QUEUES.items()
    ]
    _, work = _in_namespace("\n".join(tries))
    absent = [name for name in _QUEUES if name not in work]
    if absent:
        found = f"{', '.join(work) or 'none'}; not {', '.join(absent)}"
        modules = [f"sch_{name}" for name in absent]
        raise _ProbeError(found, _load(modules), "limited" if work else "missing")
    return ", ".join(work)


def _compiler() -> str:
    for name in ("g++", "c++"):
        if shutil.which(name):
            return _run([name, "--version"]).partition("\n")[0]
    raise _ProbeError("no g++ or c++")


def _ns3() -> str:
    from importlib.metadata import version  # 20 ms that --help need not wait

    # Importing the bindings costs 18 CPU seconds; only headers and libraries are needed.
    spec = importlib.util.find_spec("ns3")
    for folder in (spec and spec.submodule_search_locations) or []:
        if Path(folder, "include/ns3/core-module.h").exists():
            return f"{version('ns3')}, the pip package"
    if shutil.which("pkg-config"):
        try:
            return f"{_run(['pkg-config', '--modversion', 'ns3-core'])}, the system's package"
        except _ProbeError:
            pass  # pkg-config does not know it; the headers may still be there
    for folder in ("/usr/include", "/usr/local/include"):
        if Path(folder, "ns3/core-module.h").exists():
            return f"headers in {folder}"
    raise _ProbeError("not installed")


CHECKS: Sequence[Check] = (
    Check("python", "runs everything", _PYTHON, _python, True),
    Check("numba", "fast simulation", _SIM, lambda: _import("numba", _SIM, _NUMBA)),
    Check("matplotlib", "pictures", _PLOT, lambda: _import("matplotlib", _PLOT)),
    Check("torch", "training", _TORCH, _torch),
    Check("gloo", "training on CPUs", _INTERFACE, _gloo),
    Check("pacing", "slow links without privilege", _LINUX, _pacing),
    Check("namespaces", "a cluster on one machine", _LINUX, _namespaces),
    Check("queues", "rates and priorities in that cluster", _LINUX, _queues),
    Check("compiler", "only for ns-3", "sudo apt install g++", _compiler),
    Check("ns-3", "packet-level simulation", "sudo apt install libns3-dev", _ns3),
)


def _import(module: str, mend: str, code: str = "") -> str:
    if importlib.util.find_spec(module) is None:
        raise _ProbeError("not installed", mend)
    try:
        return _run_python(f"import {module}\n{code}\nprint({module}.__version__)")
    except _ProbeError as fault:
        # To pip an installed package is fine, so the extra alone would change nothing.
        again = f"pip install --force-reinstall {module}"
        raise _ProbeError(f"installed, but fails: {fault}", again) from None


def _need_linux() -> None:
    if platform.system() != "Linux":
        raise _ProbeError("needs Linux")


def _need_tool(name: str, mend: str) -> None:
    _need_linux()
    if shutil.which(name, path=_search_path()) is None:
        raise _ProbeError(f"no {name} command", mend)


def _in_namespace(script: str) -> tuple[str, list[str]]:
    """Run a shell script in a network namespace that ends with it; say how, and what it printed."""
    _need_tool("unshare", "sudo apt install util-linux")
    _need_tool("ip", _IPROUTE)
    ways = {"through a user namespace": ["unshare", "--user", "--map-root-user", "--net"]}
    if os.geteuid() == 0:
        ways = {"as root": ["unshare", "--net"]} | ways
    host = os.readlink("/proc/self/ns/net")
    reasons = []
    for way, unshare in ways.items():
        try:
            return way, _run([*unshare, "sh", "-c", _GUARD + script, "sh", host]).split()
        except _ProbeError as fault:
            reasons.append(str(fault))
    raise _ProbeError(reasons[0], _allow_namespaces())


def _allow_namespaces() -> str | None:
    if os.geteuid() == 0:
        return None
    for switch, forbids, allows in _SWITCHES:
        file = Path("/proc/sys", *switch.split("."))
        if file.exists() and file.read_text().strip() == forbids:
            return f"as root, or first: sudo sysctl -w {switch}={allows}"
    return 'as root: sudo "$(command -v bytelane)" doctor'


def _load(modules: Sequence[str]) -> str:
    command = f"sudo modprobe -a {' '.join(modules)}"
    if Path("/lib/modules", platform.release()).exists():
        return f"{command} (Ubuntu: after sudo apt install linux-modules-extra-$(uname -r))"
    return f"no modules here to load; on a kernel that has them: {command}"


def _run_python(code: str) -> str:
    with tempfile.TemporaryDirectory(prefix="bytelane-doctor-") as folder:
        return _run([sys.executable, "-B", "-c", code], limit_s=60, folder=folder)


def _run(command: Sequence[str], limit_s: float = 20, folder: str | None = None) -> str:
    """Return what a command printed; when it fails, its last words are the fault."""
    settings = {"PATH": _search_path(), "LC_ALL": "C"}
    if folder:
        settings["MPLCONFIGDIR"] = folder
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=os.environ | settings,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except BaseException as reason:
            os.killpg(process.pid, signal.SIGKILL)  # with its children, also on Ctrl-C
            if isinstance(reason, subprocess.TimeoutExpired):
                raise _ProbeError(f"no answer within {limit_s:g} s") from None
            raise
    if process.returncode:
        words = (err.strip() or out.strip()).splitlines()
        raise _ProbeError(words[-1] if words else f"exit code {process.returncode}")
    return out.strip()


def _search_path() -> str:
    # An ordinary user of Debian has no sbin on the path, where ip and tc are.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _print_text(findings: Sequence[Finding], lacking: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Text and markup=False: to rich's markup the [sim] of bytelane[sim] is a tag, and vanishes.
    console = Console(markup=False, highlight=False)
    colours = {"ok": "green", "limited": "yellow", "missing": "red"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, status, detail, _ in findings:
        table.add_row(Text(name), Text(status, style=colours[status]), Text(detail))
    console.print(table)
    mends = [finding for finding in findings if finding.mend]
    if mends:
        console.print("\nTo mend:")
    for finding in mends:
        # Never wrapped: a command must survive being copied.
        console.print(f"  {finding.name:<11} {finding.mend}", soft_wrap=True)
    verdict = f"Required, and missing: {', '.join(lacking)}." if lacking else ""
    console.print(f"\n{verdict or 'All that is required works; the rest is optional.'}")
