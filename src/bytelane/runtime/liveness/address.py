"""Addresses of sentinels: host, port, the rank's process and its token."""

import contextlib
import socket
from typing import NamedTuple

from bytelane.runtime.liveness.message import TOKEN_BYTES

ADDRESS_BYTES = 96
"""Length of every encoded address."""

LOOPBACKS = ("127.0.0.1", "::1")
# Reserved for documentation: no host has them, but a route leads outside.
_SOMEWHERE = ("192.0.2.1", "2001:db8::1")


class Address(NamedTuple):
    """A sentinel's address, with the rank's process id for messages, and its secret token."""

    host: str
    port: int
    pid: int
    token: bytes

    def encode(self) -> bytes:
        text = f"{self.host} {self.port} {self.pid} {self.token.hex()}"
        return text.encode().ljust(ADDRESS_BYTES)

    @classmethod
    def decode(cls, text: bytes) -> "Address":
        """Read an address, or raise a ValueError."""
        host, port, pid, token = text.decode().split()
        address = cls(host, int(port), int(pid), bytes.fromhex(token))
        if len(address.token) != TOKEN_BYTES or not 0 < address.port < 2**16:
            raise ValueError("not an address")
        return address

    @property
    def family(self) -> socket.AddressFamily:
        return family_of(self.host)

    @property
    def place(self) -> str:
        """Name the rank's process and host."""
        return f"process {self.pid} on {self.host}"


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def reachable_address(master: str | None) -> str:
    """Return this host's address as the master sees it; a loopback if all ranks are on this host.

    Without a master all ranks are on this host. Nothing is sent. If the master's name resolves to a
    loopback, as Debian does for a host's own name, the master is this host, and others reach it by
    the address that leads outside.
    """
    if master is None or master == "localhost":
        return next((host for host in LOOPBACKS if _is_ours(host)), LOOPBACKS[0])
    if master in LOOPBACKS:
        return master
    found = _towards(master)
    if found.startswith("127.") or found == "::1":
        for somewhere in _SOMEWHERE:
            with contextlib.suppress(OSError):
                return _towards(somewhere)
    return found  # no route outside, so all ranks are on this host


def _is_ours(host: str) -> bool:
    """Tell whether this host has that address: a host without IPv4 has no 127.0.0.1."""
    try:
        with socket.socket(family_of(host), socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _towards(host: str) -> str:
    """Return the local address from which a host would be reached."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
