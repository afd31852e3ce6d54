"""Print the results of ``bytelane lab``: checks of links, traffic, cleaning."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bytelane.cli.output import count, print_table
from bytelane.errors import LabError
from bytelane.lab import Cleaning, Hop, Lab, Share, TrafficReport
from bytelane.terminal import show
from bytelane.units import format_rate, format_seconds

SWEEP = ("100Mbit", "200Mbit", "500Mbit", "1Gbit", "2Gbit", "5Gbit", "10Gbit", "20Gbit", "50Gbit")


def warn(message: str) -> None:
    """Print a message on standard error."""
    show(f"bytelane: {message}", file=sys.stderr, flush=True)


def introduce(lab: Lab) -> None:
    """Print the mode of a lab, and its limits."""
    queues = f", priority {lab.priority}" if lab.priority else ""
    warn(f"{lab.workers} hosts, {format_rate(lab.rates[0])}, mode {lab.mode}{queues}")
    if lab.mode == "pacing":
        why = f" ({lab.reason})" if lab.reason else ""
        warn(f"each connection is limited, not the link; there are no priorities{why}")


def trust(hops: Sequence[Hop], refuse: bool) -> None:
    """Print the measured rates of links; warn, or refuse, where one is not right."""
    wrong = [hop for hop in hops if not hop.is_right]
    if not wrong:
        warn(f"checked: the links carry {_range(hops)} of their rate")
        return
    hop = min(wrong, key=lambda hop: hop.ratio)
    message = (
        f"from host {hop.source} to {hop.destination} {format_rate(hop.measured)} came through, "
        f"{hop.ratio:.2f} of what was asked; bytelane lab check measures what this machine can do"
    )
    if refuse:
        raise LabError(message)
    warn(f"warning: {message}")


def print_check(lab: Lab, found: Sequence[Sequence[Hop]], shares: Sequence[Share]) -> None:
    """Print one row per rate, or per link if there is only one rate, and the verdict."""
    if len(found) == 1:
        rows = [[f"{hop.source} -> {hop.destination}", *_cells([hop])] for hop in found[0]]
        print_table(["link", "asked", "measured", "ratio", "right"], rows)
    else:
        rows = [[format_rate(hops[0].asked), *_cells(hops)[1:]] for hops in found]
        print_table(["asked", "slowest link", "ratio", "right"], rows)
    for share in shares:
        show(f"{share.where}, high beside low priority: {share.ratio:.1%} : {1 - share.ratio:.1%}")
    show(_verdict(lab, found))


def check_document(
    lab: Lab, found: Sequence[Sequence[Hop]], shares: Sequence[Share]
) -> dict[str, Any]:
    """Return a check as JSON."""
    right = _trusted(found)
    return {
        "workers": lab.workers,
        "mode": lab.mode,
        "trusted_bit_per_s": right * 8 if right else None,
        "links": [
            {
                "source": hop.source,
                "destination": hop.destination,
                "asked_bit_per_s": hop.asked * 8,
                "measured_bit_per_s": hop.measured * 8,
                "ratio": hop.ratio,
                "right": hop.is_right,
            }
            for hops in found
            for hop in hops
        ],
        "priority": [
            {
                "where": share.where,
                "high_bit_per_s": share.high * 8,
                "low_bit_per_s": share.low * 8,
                "high_percent": share.ratio * 100,
            }
            for share in shares
        ],
    }


def tell_traffic(report: TrafficReport, out: Path | None) -> None:
    """Print a report beside the output of a command, or write it into a file."""
    import msgspec

    if out:
        document = msgspec.json.encode(traffic_document(report))
        out.write_bytes(msgspec.json.format(document))
    else:
        print_traffic(report)


def print_traffic(report: TrafficReport) -> None:
    """Print completion times by size."""
    rows = [
        [one.name, str(one.flows), str(one.unfinished)]
        + [_time(value) for value in (one.mean_s, one.p50_s, one.p90_s, one.p99_s)]
        for one in report.classes
    ]
    print_table(["flows", "number", "unfinished", "mean", "p50", "p90", "p99"], rows)
    show("small: up to 100 kB; large: 10 MB or more; times of flows that finished")


def traffic_document(report: TrafficReport) -> dict[str, Any]:
    """Return a report as JSON."""
    return {
        "classes": [
            {
                "name": one.name,
                "flows": one.flows,
                "unfinished": one.unfinished,
                "mean_ms": _ms(one.mean_s),
                "p50_ms": _ms(one.p50_s),
                "p90_ms": _ms(one.p90_s),
                "p99_ms": _ms(one.p99_s),
            }
            for one in report.classes
        ],
        "flows": [
            {"at_s": flow.at_s, "bytes": flow.bytes, "took_ms": _ms(flow.took_s)}
            for flow in report.records
        ],
    }


def print_cleaning(found: Cleaning) -> None:
    """Print which processes were ended and which labs are in use."""
    for one in found.ended:
        show(f"ended {one.pid}, left by {one.owner_pid}: {one.command}")
    if found.living:
        owners = ", ".join(map(str, found.living))
        show(f"{count(len(found.living), 'lab')} in use, left alone (process {owners})")
    for folder in found.folders:
        show(f"removed {folder}, left by a command that was killed")
    if not found.ended and not found.folders:
        show("nothing was left behind")


def _cells(hops: Sequence[Hop]) -> list[str]:
    slowest = min(hops, key=lambda hop: hop.ratio)
    right = "yes" if all(hop.is_right for hop in hops) else "no"
    return [format_rate(slowest.asked), format_rate(slowest.measured), _range(hops), right]


def _range(hops: Sequence[Hop]) -> str:
    low, high = (f"{pick(hop.ratio for hop in hops):.3f}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _trusted(found: Sequence[Sequence[Hop]]) -> float | None:
    """Return the highest rate at which all links came out right."""
    right = [hops[0].asked for hops in found if all(hop.is_right for hop in hops)]
    return max(right, default=None)


def _verdict(lab: Lab, found: Sequence[Sequence[Hop]]) -> str:
    right = _trusted(found)
    hosts = f"with {lab.workers} hosts in mode {lab.mode}"
    if right is None:
        return f"this machine cannot be trusted with {format_rate(found[0][0].asked)} {hosts}"
    beyond = "" if len(found) == 1 else ", not beyond"
    if all(hop.is_right for hop in found[-1]):
        beyond = ""
    return f"trust this machine up to {format_rate(right)} {hosts}{beyond}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(float(f"{seconds:.3g}"))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
