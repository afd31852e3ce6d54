"""Hosts as network namespaces, which end with the supervisor since nothing outside names them."""

import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from bytelane.errors import LabError
from bytelane.lab.children import Child
from bytelane.lab.links import address, shape_host, shape_port, wire_host, wire_switch
from bytelane.lab.linux import cover_file, in_network_namespace, new_network_namespace
from bytelane.lab.messages import Blueprint
from bytelane.lab.tools import run_batch

# bbr, a usual default, shapes its own traffic; and no metrics of earlier connections are used.
TCP = {"tcp_congestion_control": "reno", "tcp_no_metrics_save": "1"}


class Namespaces:
    """A network namespace for each host; the supervisor's own one is the switch."""

    tick_s = None
    """No periodic work."""

    def __init__(self, blueprint: Blueprint) -> None:
        if os.readlink("/proc/self/ns/net") == blueprint.outside:
            raise LabError("got no network namespace; the machine's own is not touched")
        _name_hosts(blueprint.hosts)
        self._priority = blueprint.priority
        self._hosts = [new_network_namespace() for _ in range(blueprint.hosts)]
        own = f"/proc/{os.getpid()}/fd"
        run_batch("ip", wire_switch([f"{own}/{descriptor}" for descriptor in self._hosts]))
        ports = [
            line
            for host in range(blueprint.hosts)
            for line in shape_port("add", host, blueprint.rate, self._priority)
        ]
        run_batch("tc", ports)
        for host in range(blueprint.hosts):
            with self.entered(host):
                for name, value in TCP.items():
                    Path("/proc/sys/net/ipv4", name).write_text(value)
                run_batch("ip", wire_host(host, blueprint.hosts))
                run_batch("tc", shape_host("add", blueprint.rate, self._priority))

    def entered(self, host: int) -> AbstractContextManager[None]:
        """Enter a host; processes started there stay in it."""
        return in_network_namespace(self._hosts[host])

    def set_rate(self, host: int, rate: float) -> None:
        run_batch("tc", shape_port("change", host, rate, self._priority))
        with self.entered(host):
            run_batch("tc", shape_host("change", rate, self._priority))

    def tick(self, children: Sequence[Child]) -> None:
        """Do nothing: the links limit all connections by themselves."""


def _name_hosts(hosts: int) -> None:
    """Write host names to /etc/hosts: libraries resolve addresses, and there is no DNS."""
    with contextlib.suppress(OSError):  # optional
        known = Path("/etc/hosts").read_text()
        # Twice: a socket that listens on IPv6 sees addresses in the second form.
        names = "".join(
            f"{form}{address(host)} host{host}\n"
            for form in ("", "::ffff:")
            for host in range(hosts)
        )
        cover_file("/etc/hosts", f"{known}\n{names}")
