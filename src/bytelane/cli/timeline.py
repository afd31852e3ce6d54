"""``bytelane timeline``: draw simulated iterations: computing, transfers, the link's rate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bytelane.cli.accounts import accounts_as_json
from bytelane.cli.options import (
    Barrier,
    ClusterOptions,
    Credit,
    Fusion,
    JobOptions,
    Json,
    OtherKnobs,
    Partition,
    flatten_options,
    given_knobs,
)
from bytelane.cli.output import print_json
from bytelane.terminal import show

if TYPE_CHECKING:
    from bytelane.sim import Simulation


@flatten_options
def timeline(
    job: JobOptions,
    cluster: ClusterOptions,
    policy: Annotated[
        str,
        typer.Option(
            help="Policies, with commas between them; one panel each.",
            metavar="NAMES",
            rich_help_panel="Policy",
        ),
    ] = "fifo,bytescheduler",
    partition: Partition = None,
    credit: Credit = None,
    fusion: Fusion = None,
    knob: OtherKnobs = None,
    barrier: Barrier = None,
    iterations: Annotated[int, typer.Option(help="Number of iterations to show.")] = 1,
    out: Annotated[
        Path, typer.Option(help="Picture to write, .svg or .png.", metavar="FILE")
    ] = Path("timeline.svg"),
    trace: Annotated[
        Path | None, typer.Option(help="Trace of the same to write, for Perfetto.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw iterations: computing, every transfer, when it is needed, and the link's rate.

    Each knob goes to the policies that declare it. Example: bytelane timeline vgg16 --workers
    4 --bandwidth 25Gbit --policy fifo,bytescheduler --out vgg16.png
    """
    import msgspec

    from bytelane.api import simulate_each
    from bytelane.report import draw_timeline, require_picture
    from bytelane.trace import save_chrome

    require_picture(out)
    found = simulate_each(
        job.find(),
        list(dict.fromkeys(name.strip() for name in policy.split(","))),
        **given_knobs(knob, partition=partition, credit=credit, fusion=fusion),
        barrier=barrier,
        **cluster._asdict(),
    )
    draw_timeline(found, out, iterations)
    if trace:
        named = [msgspec.structs.replace(one.trace, source=one.policy) for one in found]
        save_chrome(named, trace)
    if as_json:
        rows = [_row(one) for one in found]
        print_json({"job": found[0].job.name, "picture": str(out), "policies": rows})
        return
    for one in found:
        show(f"{one.policy}: {one.iteration_s * 1e3:.1f} ms per iteration")
    show(f"see {out}" + (f", or drop {trace} on ui.perfetto.dev" if trace else ""))


def _row(found: "Simulation") -> dict[str, object]:
    return {
        "policy": found.policy,
        "iteration_ms": found.iteration_s * 1000,
        "compute_ms": found.compute_s * 1000,
        "communication_ms": found.communication_s * 1000,
    } | accounts_as_json(found)
