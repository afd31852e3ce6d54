"""Commands for ``ip`` and ``tc``: hosts around a switch, a rate in each direction, priorities.

Every host has one device, ``lane0``, whose other end is a port of a bridge, the switch. A token
bucket (tbf) on both ends limits what the host sends and receives. Three bands with strict
priority follow the type of service, as in Linux's own pfifo_fast: 0x10 before the rest, 0x08
after it. On a host pfifo_fast itself does that. On the switch it cannot, because a packet loses
its priority on the way from one namespace to the other; there htb reads the packet's own mark.
"""

from collections.abc import Sequence
from typing import Literal

Priority = Literal["pfifo_fast", "htb"]
Verb = Literal["add", "change"]
Band = Literal["high", "normal", "low"]

DEVICE = "lane0"
NETWORK = "10.77.0"
MOST_HOSTS = 64

# The type of service that a socket is given (IP_TOS) to be in a band.
TOS = {"high": 0x10, "normal": 0x00, "low": 0x08}
TOS_MASK = 0x18  # the bits by which pfifo_fast tells the bands apart

# A bucket must hold one packet as the hosts hand them over: up to 64 KiB, counted with the headers
# of the 45 it stands for. With less, each is cut up, and the rate falls to 25 %.
PACKET_BYTES = 70_000
# The bucket compensates for late timers. Its tokens are spent at the peak rate, so that a link that
# was idle is too fast by at most 20 %, and not for long.
LEAST_BUCKET_BYTES = 100_000
BUCKET_S = 3e-3
PEAK = 1.2
BAND_BUCKET_S = 1e-3  # htb has no peak
# Queue of a port.
LEAST_QUEUE_BYTES = 300_000
QUEUE_S = 20e-3
# htb needs a guaranteed rate for every class. The least that it accepts is the most strict.
GUARANTEED_BIT_PER_S = 8_000


def address(host: int) -> str:
    """Return the address of a host."""
    return f"{NETWORK}.{host + 1}"


def port(host: int) -> str:
    """Return the name of the switch's device for a host."""
    return f"port{host}"


def wire_switch(hosts: Sequence[str]) -> list[str]:
    """Return lines for ``ip``, in the switch, that join hosts, given as paths of namespaces."""
    lines = ["link add switch type bridge mcast_snooping 0", "link set switch addrgenmode none up"]
    for index, namespace in enumerate(hosts):
        name = port(index)
        lines += [
            f"link add {name} type veth peer name {DEVICE} address {_mac(index)} netns {namespace}",
            f"link set {name} addrgenmode none master switch up",
        ]
    return lines


def wire_host(host: int, hosts: int) -> list[str]:
    """Return lines for ``ip``, in a host, with its address and its neighbours."""
    # Permanent neighbours: priorities would starve ARP requests.
    neighbours = [
        f"neigh add {address(other)} lladdr {_mac(other)} dev {DEVICE} nud permanent"
        for other in range(hosts)
        if other != host
    ]
    return [
        "link set lo up",
        f"link set {DEVICE} addrgenmode none up",
        f"address add {address(host)}/24 dev {DEVICE}",
        *neighbours,
    ]


def shape_host(verb: Verb, rate: float, priority: Priority | None) -> list[str]:
    """Return lines for ``tc``, in a host: its sending rate, in bytes per second, and priorities."""
    lines = [_token_bucket(verb, DEVICE, rate)]
    if priority and verb == "add":
        lines.append(f"qdisc add dev {DEVICE} parent 1:1 handle 10: pfifo_fast")
    return lines


def shape_port(verb: Verb, host: int, rate: float, priority: Priority | None) -> list[str]:
    """Return lines for ``tc``, in the switch: the rate at which a host receives, and priorities."""
    if priority == "htb":
        return _bands(verb, port(host), rate)
    return [_token_bucket(verb, port(host), rate)]


def _token_bucket(verb: Verb, device: str, rate: float) -> str:
    return (
        f"qdisc {verb} dev {device} root handle 1: tbf "
        f"rate {_bits(rate)}bit burst {max(LEAST_BUCKET_BYTES, round(rate * BUCKET_S))} "
        f"peakrate {_bits(PEAK * rate)}bit mtu {PACKET_BYTES} limit {_queue(rate)}"
    )


def _bands(verb: Verb, device: str, rate: float) -> list[str]:
    whole, burst = _bits(rate), max(PACKET_BYTES, round(rate * BAND_BUCKET_S))
    bucket = f"burst {burst} cburst {burst} quantum {PACKET_BYTES}"
    lines = [f"class {verb} dev {device} parent 1: classid 1:1 htb rate {whole}bit {bucket}"]
    for band in range(len(TOS)):
        lines.append(
            f"class {verb} dev {device} parent 1:1 classid 1:1{band} htb "
            f"rate {GUARANTEED_BIT_PER_S}bit ceil {whole}bit {bucket} prio {band}"
        )
        lines.append(
            f"qdisc {verb} dev {device} parent 1:1{band} handle 2{band}: bfifo limit {_queue(rate)}"
        )
    if verb == "change":
        return lines
    filters = [
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 "
        f"match ip tos {TOS[name]:#04x} {TOS_MASK:#04x} flowid 1:1{band}"
        for band, name in enumerate(TOS)
        if name != "normal"
    ]
    return [f"qdisc add dev {device} root handle 1: htb default 11", *lines, *filters]


def _mac(host: int) -> str:
    return f"02:00:00:00:00:{host + 1:02x}"


def _bits(rate: float) -> int:
    return round(rate * 8)


def _queue(rate: float) -> int:
    return max(LEAST_QUEUE_BYTES, round(rate * QUEUE_S))
