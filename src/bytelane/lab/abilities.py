"""Probe which features of the lab work on this machine, and name commands that mend the rest.

Probes run in a network namespace of their own. Their only side effect: the kernel may load a module
for a device or queue.
"""

import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bytelane.errors import BytelaneError, LabError
from bytelane.lab.lab import Lab
from bytelane.lab.pacing import SO_MAX_PACING_RATE
from bytelane.lab.tools import PACKAGES, find_tool, run_tool

QUEUES = {
    "tbf": "root tbf rate 10mbit burst 32kb latency 50ms",
    "htb": "root htb",
    "pfifo_fast": "root pfifo_fast",
    "ingress": "ingress",
    "netem": "root netem delay 1ms",
    "prio": "root prio",
    "fq": "root fq",
}
DEVICES = {"veth": "veth peer name lane1", "bridge": "bridge"}
# Kernel settings that forbid namespaces to ordinary users: name, forbidding and allowing value.
SWITCHES = [
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),  # Ubuntu's default since 24.04
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
]
# The host's own devices are never touched, not even if unshare should do nothing; and a namespace
# without privileges (Ubuntu's, for an ordinary user) is useless.
GUARD = """
[ "$(readlink /proc/self/ns/net)" != "$1" ] || { echo 'got no namespace' >&2; exit 1; }
ip link set lo up || exit 1
trap 'exit 0' EXIT
"""


class Lacking(BytelaneError):
    """A feature does not work, or only in part; without ``mend`` the check's own one is shown."""

    def __init__(
        self,
        detail: str,
        mend: str | None = None,
        status: Literal["missing", "limited"] = "missing",
    ) -> None:
        super().__init__(detail)
        self.mend = mend
        self.status = status


def try_lab() -> str:
    """Open a lab; return its mode."""
    _need_linux()
    try:
        with Lab(2, "100Mbit", priority="htb"):
            return "mode namespace, with priorities"
    except LabError as error:
        reason = str(error)
    with Lab(2, "100Mbit") as lab:
        mode = lab.mode
    mend = _allow_namespaces() if mode == "pacing" else None
    raise Lacking(f"mode {mode}, without priorities: {reason}", mend, "limited")


def try_pacing() -> str:
    """Give a socket a rate and read it back."""
    _need_linux()
    asked = 1_000_000
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5) as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, asked)
        kept = client.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE)
    if kept != asked:
        raise Lacking(f"a socket was asked for {asked} B/s and kept {kept}")
    return "sockets take a rate"


def try_namespaces() -> str:
    """Make a namespace with the devices that a lab needs; return how that was possible."""
    tries = [
        f"ip link add lane0 type {device} && echo {name}; ip link del lane0"
        for name, device in DEVICES.items()
    ]
    way, made = _in_namespace("\n".join(tries))
    absent = [name for name in DEVICES if name not in made]
    if absent:
        raise Lacking(f"{way}, but without {', '.join(absent)}", _load(absent), "limited")
    return f"{way}, with veth and bridge"


def try_queues() -> str:
    """Try every queueing discipline that a lab can use; return those that work."""
    _need_tool("tc")
    tries = [
        f"tc qdisc add dev lo {queue} && echo {name}; tc qdisc del dev lo {queue.split()[0]}"
        for name, queue in QUEUES.items()
    ]
    _, work = _in_namespace("\n".join(tries))
    absent = [name for name in QUEUES if name not in work]
    if absent:
        found = f"{', '.join(work) or 'none'}; not {', '.join(absent)}"
        modules = [f"sch_{name}" for name in absent]
        raise Lacking(found, _load(modules), "limited" if work else "missing")
    return ", ".join(work)


def _need_linux() -> None:
    if platform.system() != "Linux":
        raise Lacking("needs Linux")


def _need_tool(name: str) -> None:
    _need_linux()
    try:
        find_tool(name)
    except LabError:
        raise Lacking(f"no {name} command", f"sudo apt install {PACKAGES[name]}") from None


def _in_namespace(script: str) -> tuple[str, list[str]]:
    """Run a shell script in a new network namespace; return how that was made, and the output."""
    _need_tool("unshare")
    _need_tool("ip")
    ways = {"through a user namespace": ["unshare", "--user", "--map-root-user", "--net"]}
    if os.geteuid() == 0:
        ways = {"as root": ["unshare", "--net"]} | ways
    host = os.readlink("/proc/self/ns/net")
    reasons = []
    for way, unshare in ways.items():
        try:
            return way, run_tool([*unshare, "sh", "-c", GUARD + script, "sh", host]).split()
        except LabError as fault:
            reasons.append(str(fault))
    raise Lacking(reasons[0], _allow_namespaces())


def _allow_namespaces() -> str | None:
    if os.geteuid() == 0:
        return None
    for switch, forbids, allows in SWITCHES:
        file = Path("/proc/sys", *switch.split("."))
        if file.exists() and file.read_text().strip() == forbids:
            return f"as root, or first: sudo sysctl -w {switch}={allows}"
    return 'as root: sudo "$(command -v bytelane)" doctor'


def _load(modules: Sequence[str]) -> str:
    command = f"sudo modprobe -a {' '.join(modules)}"
    if Path("/lib/modules", platform.release()).exists():
        return f"{command} (Ubuntu: after sudo apt install linux-modules-extra-$(uname -r))"
    return f"no modules here to load; on a kernel that has them: {command}"
