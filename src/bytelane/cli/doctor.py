"""``bytelane doctor``: check what works on this machine, and print commands to mend the rest."""

import json
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import typer

from bytelane.cli.options import Json
from bytelane.lifetime import terminable
from bytelane.terminal import printable, show

Status = Literal["ok", "missing", "limited"]

_PYTHON = "sudo apt install python3.11-venv && python3.11 -m venv .venv"
_LINUX = "in a Linux container: docker run --privileged -it python:3.12"
_INTERFACE = "name the network interface that gloo shall use: export GLOO_SOCKET_IFNAME=lo"


class Check(NamedTuple):
    """A check: ``probe`` returns what it found, e.g. a version, or raises why it is not enough."""

    name: str
    purpose: str
    mend: str
    probe: Callable[[], str]
    required: bool = False


class Finding(NamedTuple):
    """The result of a check; the fields are the keys of the JSON."""

    name: str
    status: Status
    detail: str
    mend: str | None


def doctor(as_json: Json = False) -> None:
    """Check what works on this machine, and say how to mend what does not.

    Exit code 1 only if a check fails without which nothing works at all.
    """
    checks = all_checks()
    with terminable():
        findings = [examine(check) for check in checks]
    lacking = [
        check.name
        for check, finding in zip(checks, findings, strict=True)
        if check.required and finding.status != "ok"
    ]
    if as_json:
        found = [finding._asdict() for finding in findings]
        show(json.dumps({"checks": found, "ok": not lacking}, indent=2))
    else:
        _print_text(findings, lacking)
    if lacking:
        raise typer.Exit(1)


def all_checks() -> Sequence[Check]:
    """Return all checks, in the order in which they are shown."""
    from bytelane.cli import probes
    from bytelane.lab import abilities

    return (
        Check("python", "runs everything", _PYTHON, probes.try_python, True),
        Check("numba", "fast simulation", probes.SIM, probes.try_numba),
        Check("matplotlib", "pictures", probes.PLOT, probes.try_matplotlib),
        Check("torch", "training", probes.TORCH, probes.try_torch),
        Check("gloo", "training on CPUs", _INTERFACE, probes.try_gloo),
        Check("pyzmq", "parameter servers", probes.SERVERS, probes.try_pyzmq),
        Check("lab", "a cluster on one machine", _LINUX, abilities.try_lab),
        Check("pacing", "slow links without privilege", _LINUX, abilities.try_pacing),
        Check("namespaces", "real links in the lab", _LINUX, abilities.try_namespaces),
        Check("queues", "rates and priorities on them", _LINUX, abilities.try_queues),
        Check("compiler", "only for ns-3", "sudo apt install g++", probes.try_compiler),
        Check("ns-3", "packet-level simulation", "sudo apt install libns3-dev", probes.try_ns3),
    )


def examine(check: Check) -> Finding:
    """Run one check. A probe that crashes is a finding too."""
    from bytelane.errors import LabError
    from bytelane.lab.abilities import Lacking

    status: Status
    try:
        return Finding(check.name, "ok", f"{check.probe()} ({check.purpose})", None)
    except Lacking as fault:
        status, detail, mend = fault.status, str(fault), fault.mend
    except LabError as error:
        status, detail, mend = "missing", str(error), None
    except Exception as error:
        status, detail, mend = "missing", f"{type(error).__name__}: {error}", None
    return Finding(check.name, status, f"{detail} ({check.purpose})", mend or check.mend)


def _print_text(findings: Sequence[Finding], lacking: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Text and markup=False: to rich's markup the [sim] of bytelane[sim] is a tag, and vanishes.
    console = Console(markup=False, highlight=False)
    colours = {"ok": "green", "limited": "yellow", "missing": "red"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, status, detail, _ in findings:
        table.add_row(Text(name), Text(status, style=colours[status]), Text(printable(detail)))
    console.print(table)
    mends = [finding for finding in findings if finding.mend]
    if mends:
        console.print("\nTo mend:")
    for finding in mends:
        # Never wrapped: a command must survive being copied.
        console.print(f"  {finding.name:<11} {finding.mend}", soft_wrap=True)
    verdict = f"Required, and missing: {', '.join(lacking)}." if lacking else ""
    console.print(f"\n{verdict or 'All that is required works; the rest is optional.'}")
