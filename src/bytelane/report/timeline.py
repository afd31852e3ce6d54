"""Draw the timeline of iterations: computing, transfers, when they are needed, the link's rate.

The steady state repeats, so one iteration is drawn several times.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bytelane.errors import InputError
from bytelane.report.lanes import MS, draw_computing, draw_lines, draw_rate, stage_colour, top
from bytelane.report.panel import Panel
from bytelane.report.style import COLOURS, MARKS, WAITING, heading, new_figure, plain, save_figure
from bytelane.sim import Simulation
from bytelane.sim.accounts import Use, accounts

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure, SubFigure

WIDTH_INCHES = 11.0
LINE_INCHES, MOST_INCHES = 0.19, 4.4
RATE_INCHES = 0.8
MOST_ITERATIONS = 20


def draw_timeline(found: Sequence[Simulation], path: str | Path, iterations: int = 1) -> None:
    """Write one picture with one panel per simulation, all on the same time axis."""
    save_figure(timeline_figure(found, iterations), path)


def timeline_figure(found: Sequence[Simulation], iterations: int = 1) -> "Figure":
    """Draw the timeline without writing it."""
    if not 1 <= iterations <= MOST_ITERATIONS:
        raise InputError(f"{iterations} iterations cannot be shown; use 1 to {MOST_ITERATIONS}")
    panels = [Panel.of(one, iterations) for one in found]
    heights = [_lines_inches(panel) + RATE_INCHES + 0.6 for panel in panels]
    figure = new_figure(WIDTH_INCHES, sum(heights) + 1.05)
    parts = figure.subfigures(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
    end_ms = MS * max(panel.end_s for panel in panels) or 1.0
    for part, panel in zip(parts, panels, strict=True):
        _draw_panel(part, panel, end_ms)
    parts[-1].axes[-1].set_xlabel("time since the forward pass began (ms)", fontsize=9)
    figure.suptitle(
        heading(found[0].job, found[0].cluster), x=0.01, ha="left", fontsize=11, fontweight="bold"
    )
    handles = _legend(panels)
    columns = -(-len(handles) // 2)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )
    return figure


def _lines_inches(panel: Panel) -> float:
    return min(MOST_INCHES, LINE_INCHES * (panel.lines - top(panel)))


def _draw_panel(part: "SubFigure", panel: Panel, end_ms: float) -> None:
    ratios = [_lines_inches(panel), RATE_INCHES]
    upper, lower = part.subplots(2, 1, sharex=True, height_ratios=ratios)
    for axes in (upper, lower):
        axes.set_xlim(0, 1.005 * end_ms)  # first: which names fit depends on the scale
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", labelsize=8)
        for period in panel.periods_s[1:]:
            ends_ms = MS * (period + panel.one.iteration_s)
            axes.axvline(ends_ms, color="black", linewidth=0.9, linestyle="--", zorder=4)
    upper.set_ylim(panel.lines - 0.3, top(panel) - 0.1)
    draw_computing(upper, panel)
    draw_lines(upper, panel)
    draw_rate(lower, panel)
    upper.set_title(_title(panel), loc="left", fontsize=10)


def _title(panel: Panel) -> str:
    used = accounts(panel.found)
    idle = _share(used.up)
    if panel.found.cluster.sync == "ps":
        idle = f"{idle} up and {_share(used.down)} down"
    name, iteration = plain(panel.found.policy), _ms(panel.one.iteration_s)
    return (
        f"{name}: {iteration} per iteration; computing waits {_share(used.compute)}, "
        f"the link is idle {idle}"
    )


def _share(use: Use) -> str:
    return f"{_ms(use.idle_s)} ({1 - use.busy_share:.0%})"


def _ms(seconds: float) -> str:
    """Print milliseconds, as on the axis: one decimal, or four digits below 100 ms."""
    return f"{MS * seconds:.1f} ms" if seconds >= 0.1 else f"{MS * seconds:.4g} ms"


def _legend(panels: Sequence[Panel]) -> "list[Artist]":
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    job = panels[0].found.job
    kinds = ["backward", "forward"]
    kinds += ["update"] * any(layer.update_s for layer in job.layers)
    kinds += ["outside"] * bool(job.outside_s)
    stages = {stage: number for panel in panels for number, stage in enumerate(panel.stages)}
    return [
        *(Patch(color=COLOURS[kind], label=kind) for kind in kinds),
        Patch(**WAITING, label="computing waits"),
        *(Patch(color=stage_colour(number), label=stage) for stage, number in stages.items()),
        _tick(COLOURS["backward"], "gradient is ready"),
        Line2D([], [], color=MARKS["queued"], label="waits for the link"),
        Line2D([], [], color=MARKS["slack"], label="slack"),
        Line2D([], [], color=MARKS["waiting"], linewidth=2, label="late"),
        _tick(MARKS["needed"], "needed"),
        Line2D([], [], color="black", linestyle="--", linewidth=0.9, label="next iteration"),
    ]


def _tick(colour: str, label: str) -> "Artist":
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker="|", markersize=8, linestyle="", label=label)
