"""``bytelane compare``: simulate a job under every policy, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.options import ClusterOptions, JobOptions, Json, flatten_options
from bytelane.cli.output import count, print_json, print_table
from bytelane.terminal import one_line, show

if TYPE_CHECKING:
    from bytelane.sim import Simulation


@flatten_options
def compare(
    job: JobOptions,
    cluster: ClusterOptions,
    plot: Annotated[
        Path | None, typer.Option(help="Bar chart to write, .svg or .png.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show all policies side by side: the gain over fifo, and the distance from the optimum.

    Each policy has its default knobs. Example: bytelane compare vgg16 --bandwidth 25Gbit
    """
    from bytelane.api import simulate_each
    from bytelane.core import policies_for
    from bytelane.plugins import load_policies
    from bytelane.report import draw_bars, require_picture
    from bytelane.report.bars import format_gain

    if plot is not None:
        require_picture(plot)
    what, where = job.find(), cluster.make()
    load_policies()
    names = policies_for(where.sync)
    simulations = simulate_each(what, names, **cluster._asdict())
    found = dict(zip(names, simulations, strict=True))
    if plot is not None:
        draw_bars(found, plot)
    rows = [_row(name, found) for name in names]
    if as_json:
        place = {"job": what.name, "sync": where.sync, "workers": where.workers}
        print_json(place | {"policies": rows})
        return
    show(f"{one_line(what.name)} on {count(where.workers, 'worker')}, {where.link}\n")
    print_table(
        ("policy", "iteration", "over fifo", "above the optimum"),
        [
            (
                row["policy"],
                f"{row['iteration_ms']:.1f} ms",
                format_gain(row["gain_over_fifo_percent"]),
                f"{row['above_optimum_percent']:.1f} %",
            )
            for row in sorted(rows, key=lambda row: float(row["iteration_ms"]))
        ],
    )


def _row(name: str, found: "dict[str, Simulation]") -> dict[str, Any]:
    from bytelane.report.bars import gain_percent

    seconds = found[name].iteration_s
    return {
        "policy": name,
        "iteration_ms": seconds * 1000,
        "gain_over_fifo_percent": 0.0 + gain_percent(found["fifo"].iteration_s, seconds),
        "above_optimum_percent": max(0.0, gain_percent(seconds, found["optimal"].iteration_s)),
    }
