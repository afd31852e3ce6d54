"""Addresses of parameter servers: HOST:PORT, of which a server also uses the next port."""

import ipaddress
from typing import NamedTuple

from bytelane.errors import InputError
from bytelane.runtime.ps.keys import Keys
from bytelane.values import shown

MOST_PORT = 2**16 - 1


class Address(NamedTuple):
    """Where a server listens: *up* at the port, *down* at the next one."""

    host: str
    port: int

    @property
    def up(self) -> str:
        """The endpoint for pushes."""
        return self._endpoint(self.port)

    @property
    def down(self) -> str:
        """The endpoint for sums."""
        return self._endpoint(self.port + 1)

    @property
    def is_loopback(self) -> bool:
        """Whether no other host can reach it; False for any other name than localhost."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return self._endpoint(self.port).removeprefix("tcp://")

    def _endpoint(self, port: int) -> str:
        return f"tcp://[{self.host}]:{port}" if ":" in self.host else f"tcp://{self.host}:{port}"


def parse_address(text: str) -> Address:
    """Read HOST:PORT or [IPV6]:PORT; the port after it must exist, too."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        bracketed = True
    else:
        bracketed = False
    name = all(part.isprintable() and part not in "*;@/ " for part in host)
    if not host or not name or (":" in host) != bracketed or not port.isascii():
        raise InputError(f"{shown(text)} is not an address; use HOST:PORT, e.g. 127.0.0.1:5600")
    if not port.isdigit() or len(port) > 5 or not 0 <= int(port) < MOST_PORT:
        raise InputError(
            f"{shown(text)} has no usable port; use one of 1 to {MOST_PORT - 1}, "
            "and 0 for any that is free"
        )
    return Address(host, int(port))


def require_own(address: Address) -> Address:
    """Return an address to listen on: one of this host's numbers, not a name."""
    if address.host == "localhost":
        return Address("127.0.0.1", address.port)
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        raise InputError(
            f"{shown(address.host)} is not an IP address to listen on; use one of this host's, "
            "0.0.0.0 for all of them, or 127.0.0.1"
        ) from None
    return address


def require_private(address: Address, keys: Keys | None, *, plaintext: bool) -> None:
    """Refuse to send gradients over a network unencrypted, unless that was asked for."""
    if keys is not None and plaintext:
        raise InputError("keys and plaintext=True contradict each other; use one of them")
    if keys is None and not plaintext and not address.is_loopback:
        raise InputError(
            f"{address} is not a loopback address, and without keys any host could read and change "
            "what is trained; make keys with bytelane ps keygen FOLDER and use them at both ends, "
            "or say plaintext=True (--plaintext) on a network that you trust"
        )
