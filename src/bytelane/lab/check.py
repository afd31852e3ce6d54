"""Measure the rates and priorities of a lab's links."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from bytelane.errors import InputError, LabError
from bytelane.lab.agents import Agents
from bytelane.lab.bulk import Flow, Samples
from bytelane.lab.links import LEAST_BUCKET_BYTES, TOS
from bytelane.lab.messages import Mode
from bytelane.values import as_number

if TYPE_CHECKING:
    from bytelane.lab.lab import Lab

# Share of the rate that is payload: a frame of 1514 bytes carries 1448, while pacing counts no
# headers.
GOODPUT = {"namespace": 1448 / 1514, "pacing": 1.0}
TOLERANCE = 0.06
SECONDS = 1.0
MOST_S = 3600
# A bucket is full at first, and TCP must find its rate.
WARM_UP_S = 0.4


class Hop(msgspec.Struct, frozen=True):
    """A transfer from one host to the next: the rate asked for, and the rate measured."""

    source: int
    destination: int
    asked: float
    """Bytes per second of the slower one of both links."""
    measured: float
    """Bytes per second that arrived."""
    mode: Mode

    @property
    def ratio(self) -> float:
        return self.measured / self.asked

    @property
    def is_right(self) -> bool:
        """Whether it is within 6 % of what TCP can get out of such a link."""
        return abs(self.ratio / GOODPUT[self.mode] - 1) <= TOLERANCE


class Share(msgspec.Struct, frozen=True):
    """Two transfers, one at high and one at low priority, over one link."""

    where: str
    high: float
    """Bytes per second."""
    low: float

    @property
    def ratio(self) -> float:
        """The share of the transfer at high priority."""
        both = self.high + self.low
        return self.high / both if both else 0.0


def check_rates(lab: "Lab", seconds: float = SECONDS) -> list[Hop]:
    """Send from every host to the next at the same time, as an all-reduce does.

    That way each link is busy in both directions.
    """
    ring = [Flow(host, (host + 1) % lab.workers) for host in range(lab.workers)]
    measured = measure(lab, ring, seconds)
    return [
        Hop(
            flow.source,
            flow.destination,
            min(lab.rates[flow.source], lab.rates[flow.destination]),
            rate,
            lab.mode,
        )
        for flow, rate in zip(ring, measured, strict=True)
    ]


def check_priority(lab: "Lab", seconds: float = SECONDS) -> list[Share]:
    """Send at high and at low priority: out of one host, and (htb) from two hosts into one."""
    places = {"out of a host": (0, 0, 1)}
    if lab.priority == "htb" and lab.workers > 2:
        places["out of the switch"] = (0, 1, 2)
    shares = []
    for where, (low, high, destination) in places.items():
        # The low one first: it could not even connect later.
        flows = [
            Flow(low, destination, TOS["low"]),
            Flow(high, destination, TOS["high"], after_s=WARM_UP_S / 2),
        ]
        rates = measure(lab, flows, seconds)
        shares.append(Share(where, rates[1], rates[0]))
    return shares


def require_measurable(seconds: float) -> None:
    """Refuse a duration that is not positive, or too long."""
    if not 0 < as_number(seconds, "seconds") <= MOST_S:
        raise InputError(
            f"{seconds} seconds cannot be measured; use more than 0 and at most {MOST_S:,}"
        )


def measure(lab: "Lab", flows: Sequence[Flow], seconds: float) -> list[float]:
    """Return the bytes per second of each flow while all of them are busy."""
    require_measurable(seconds)
    try:
        agents = Agents(lab, "bulk", json.dumps(flows))
        time.sleep(max(WARM_UP_S, 2 * LEAST_BUCKET_BYTES / min(lab.rates)))
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        reports = agents.stop()
    except LabError as error:
        raise LabError(f"the lab cannot be measured: {error}") from None
    samples: dict[str, Samples] = {}
    for report in reports:
        samples |= json.loads(report)
    return [_rate(samples[str(index)], begin, end) for index in range(len(flows))]


def _rate(samples: Samples, begin: float, end: float) -> float:
    """Return bytes per second between the samples that are just inside."""
    inside = [sample for sample in samples if begin <= sample[0] <= end]
    if len(inside) < 2:
        raise LabError("the machine is too busy to measure the lab; measure for longer")
    (first_s, first), (last_s, last) = inside[0], inside[-1]
    return (last - first) / (last_s - first_s)


def sweep_rates(lab: "Lab", rates: Sequence[float], seconds: float = SECONDS) -> list[list[Hop]]:
    """Check one rate after the other, until one does not come out right twice."""
    found = []
    for rate in rates:
        lab.set_rate(rate)
        hops = check_rates(lab, seconds)
        if not all(hop.is_right for hop in hops):
            hops = check_rates(lab, seconds)  # another process may have disturbed
        found.append(hops)
        if not all(hop.is_right for hop in hops):
            break
    return found
