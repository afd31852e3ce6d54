"""``bytelane profile-network``: measure bandwidth, overhead, latency and floor between ranks."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.needs import require_torch
from bytelane.cli.options import Json
from bytelane.cli.output import print_json, print_table
from bytelane.errors import InputError
from bytelane.terminal import show
from bytelane.values import shown

if TYPE_CHECKING:
    from bytelane.cluster import Link
    from bytelane.measure.network import NetworkProfile

HOW = (
    "start this on every worker, e.g.: torchrun --nnodes 2 --nproc-per-node 1 "
    "--rdzv-backend c10d --rdzv-endpoint HOST:29500 -m bytelane profile-network; "
    "or try it on this machine: bytelane profile-network --workers 2"
)


def profile_network(
    workers: Annotated[
        int | None,
        typer.Option(help="Number of ranks to start on this machine instead.", show_default=False),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            help="With --workers: rate to which each connection is slowed down.", metavar="RATE"
        ),
    ] = None,
    budget_s: Annotated[
        float, typer.Option("--seconds", help="Approximate duration, in seconds.", min=0.1, max=250)
    ] = 20.0,
    as_json: Json = False,
) -> None:
    """Measure bandwidth, overhead, latency and floor of the network between workers.

    Times real all-reduces of several sizes, alone and with others in flight, over gloo. Start it
    with torchrun on the hosts in question; rank 0 prints.

    Example: torchrun --nproc-per-node 2 -m bytelane profile-network
    """
    inside = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if bandwidth is not None and workers is None:
        raise InputError("bandwidth slows down local ranks only; give --workers, too")
    if workers is None and not inside:
        raise InputError(f"a network needs two ends; {HOW}")
    if workers is not None and inside:
        raise InputError("torchrun has started the workers already; leave --workers out")
    require_torch("measuring")
    found = _among_ranks(budget_s) if workers is None else _locally(workers, bandwidth, budget_s)
    if found is None:
        return
    if as_json:
        print_json(summary(found))
    else:
        _print_text(found)


def _among_ranks(budget_s: float) -> "NetworkProfile | None":
    """Measure as one of torchrun's workers; return None on all ranks but 0."""
    import torch.distributed as dist

    from bytelane.measure.network import profile_network

    _require_numbers("RANK", "WORLD_SIZE")
    if int(os.environ["WORLD_SIZE"]) < 2:
        raise InputError(f"one worker has no network to measure; {HOW}")
    _require_numbers("MASTER_PORT")
    dist.init_process_group("gloo")
    try:
        group = dist.group.WORLD
        assert group is not None
        found = profile_network(group, budget_s)
        return found if dist.get_rank() == 0 else None
    finally:
        dist.destroy_process_group()


def _require_numbers(*names: str) -> None:
    """Refuse environment variables that are missing or no numbers."""
    for name in names:
        value = os.environ.get(name)
        if value is None or not value.isdecimal():
            said = "is not set" if value is None else f"is {shown(value)}"
            raise InputError(f"{name} {said} in the environment, where torchrun sets it; {HOW}")


def _locally(workers: int, bandwidth: str | None, budget_s: float) -> "NetworkProfile":
    from bytelane.lifetime import terminable
    from bytelane.measure.loopback import profile_loopback
    from bytelane.units import parse_rate

    rate = None if bandwidth is None else parse_rate(bandwidth)
    with terminable():
        return profile_loopback(workers, rate, budget_s)


def summary(found: "NetworkProfile") -> dict[str, Any]:
    """Return everything that was measured, units in the keys."""
    from statistics import median

    errors = [abs(error) for error in found.errors]
    return {
        "workers": found.workers,
        "bandwidth_bit_per_s": found.link.rate * 8,
        "overhead_ms": found.link.overhead_s * 1e3,
        "latency_ms": found.link.latency_s * 1e3,
        "floor_ms": found.link.floor_s * 1e3,
        "held_out_error_median_percent": 100 * median(errors),
        "held_out_error_worst_percent": 100 * max(errors),
        "samples": [
            {
                "message_bytes": sample.size,
                "in_flight": sample.in_flight,
                "message_ms": sample.seconds * 1e3,
                "uncertainty_percent": 100 * sample.uncertainty,
                "efficiency_percent": 100 * found.efficiency(sample),
            }
            for sample in found.samples
        ],
        "simulate_options": simulate_options(found.workers, found.link),
    }


def simulate_options(workers: int, link: "Link") -> str:
    """Write a link as command-line options."""
    from bytelane.units import format_rate, format_seconds

    rate = format_rate(link.rate).removesuffix("/s")
    options = f"--workers {workers} --bandwidth {rate} --overhead "
    options += f"{format_seconds(link.overhead_s)} --latency {format_seconds(link.latency_s)}"
    options += f" --floor {format_seconds(link.floor_s)}"
    for unit in ("Gbit", "Mbit", "kbit", "bit", "ms", "us", "ns", "s"):
        options = options.replace(f" {unit}", unit)
    return options


def _print_text(found: "NetworkProfile") -> None:
    from statistics import median

    from bytelane.units import format_bytes, format_seconds

    show(f"{found.workers} workers: {found.link}\n")
    cells = {(sample.size, sample.in_flight): sample for sample in found.samples}
    sizes, numbers = (list(dict.fromkeys(values)) for values in zip(*cells, strict=True))
    print_table(
        ("message", *(f"{number} in flight" for number in numbers)),
        [
            (
                format_bytes(size),
                *(
                    f"{format_seconds(cells[size, n].seconds)} "
                    f"({found.efficiency(cells[size, n]):4.0%})"
                    for n in numbers
                ),
            )
            for size in sizes
        ],
    )
    errors = [abs(error) for error in found.errors]
    show(
        f"\ntime per message, and its share of the fitted rate\n"
        f"fitted to every other size, the link misses the sizes between by {median(errors):.1%} "
        f"(median), {max(errors):.1%} (worst)\n"
        f"now: bytelane simulate JOB {simulate_options(found.workers, found.link)}"
    )
