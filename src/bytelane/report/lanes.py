"""Draw a panel of a timeline: rows of computing, one line per layer, and the rates of the link.

Heights are counted in lines; the first layer is at 0, the next at 1.
"""

from typing import TYPE_CHECKING

import numpy as np

from bytelane.report.panel import Panel, Step, rate_over_time, waits
from bytelane.report.shapes import TOO_MANY, draw_boxes, draw_level, draw_ticks
from bytelane.report.style import COLOURS, MARKS, WAITING, plain
from bytelane.sim.layout import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The rows of computing, and what is drawn in each.
ROWS = {"backward": ("backward", "outside"), "forward": ("forward", "update")}
# The most lines that have arrows, and that have a name each.
MOST_ARROWS, MOST_NAMES = 12, 36
LONGEST_NAME = 30
# About how many letters fit into the width of a picture.
LETTERS = 130
MS = 1e3
GIGABITS = 8e-9


def row_height(panel: Panel) -> float:
    """Return the height of a row of computing; it must not vanish above hundreds of lines."""
    return max(1.5, panel.lines / 14)


def top(panel: Panel) -> float:
    """Return the height at which the rows of computing begin, above the lines."""
    return -1.0 - row_height(panel) * len(ROWS)


def stage_colour(number: int) -> str:
    """Return the colour of the transfers of a stage: a pull is paler than its push."""
    return MARKS["later transfer"] if number else COLOURS["transfer"]


def draw_computing(axes: "Axes", panel: Panel) -> None:
    """Draw backward and forward, and the time in which nothing is computed."""
    computed, height = panel.steps(), row_height(panel)
    for number, kinds in enumerate(ROWS.values()):
        low = top(panel) + number * height
        for kind in kinds:
            mine = [step for step in computed if step.kind == kind and step.end_s > step.start_s]
            starts, ends = (MS * np.array([step[k] for step in mine]) for k in (2, 3))
            lows = np.full(len(mine), low)
            draw_boxes(axes, starts, ends, lows, lows + 0.88 * height, COLOURS[kind])
            _name_steps(axes, mine, low + 0.44 * height)
    axes.broken_barh(
        [(MS * start, MS * (end - start)) for start, end in waits(computed)],
        (top(panel) + height, 0.88 * height),
        **WAITING,
    )


def draw_lines(axes: "Axes", panel: Panel) -> None:
    """Draw for each layer when its gradient is ready, its transfers, its slack, and its use."""
    line = panel.each_time(np.arange(panel.lines))
    ready, arrived, needed, used = (MS * panel.repeated(moments) for moments in panel.slack[1:5])
    late = arrived > needed
    # Strokes of many lines must not merge into a surface.
    width = min(1.0, max(0.35, 14 / max(1, panel.lines)))
    draw_level(axes, ready, arrived, line, MARKS["queued"], width)
    draw_level(axes, arrived, used, line, MARKS["slack"], 1.4 * width)
    draw_level(axes, needed[late], arrived[late], line[late], MARKS["waiting"], 1.8 * width)
    _draw_transfers(axes, panel)
    for moments, colour in ((ready, COLOURS["backward"]), (needed, MARKS["needed"])):
        draw_ticks(axes, moments, line - 0.42, line + 0.42, colour, 1.3)
    if panel.lines <= MOST_ARROWS:
        _draw_arrows(axes, panel, line, ready, used)
    _name_lines(axes, panel)


def draw_rate(axes: "Axes", panel: Panel) -> None:
    """Draw what a worker's link sends above the axis, and what it receives below."""
    rate, sent = panel.found.cluster.link.rate * GIGABITS, panel.sent
    starts, ends = panel.repeated(sent.start_s), panel.repeated(sent.end_s)
    received = stage_colour(1 if panel.found.cluster.sync == "ps" else 0)
    ways = ((1, sent.up_bytes, stage_colour(0)), (-1, sent.down_bytes, received))
    for sign, sizes, colour in ways:
        moments, level = rate_over_time(starts, ends, panel.each_time(sizes))
        height = sign * GIGABITS * level
        area = axes.fill_between(MS * moments, height, step="post", color=colour, linewidth=0)
        area.set_rasterized(moments.size > TOO_MANY)
        axes.axhline(sign * rate, color="black", linewidth=0.5, linestyle=(0, (2, 3)))
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_ylim(-1.15 * rate, 1.15 * rate)
    axes.set_yticks([-rate, 0, rate], [f"in {rate:g}", "0", f"out {rate:g}"], fontsize=7)
    axes.set_ylabel("Gbit/s", fontsize=8)


def _draw_transfers(axes: "Axes", panel: Panel) -> None:
    operation, first, last = panel.blocks()
    half = 0.38 if panel.lines <= MOST_NAMES else 0.5
    # Push and pull overlap, so each has half of the line.
    halves = panel.found.cluster.sync == "ps"
    for stage in range(len(panel.stages)):
        colour = stage_colour(stage)
        moments = (panel.one.sending, panel.one.sent, panel.one.known)
        start, end, known = (MS * panel.repeated(moment[stage, operation]) for moment in moments)
        height = (panel.each_time(last - first) + 2 * half) / (2 if halves else 1)
        low = panel.each_time(first) - half + (stage * height if halves else 0)
        draw_level(axes, end, known, low + height / 2, colour, 1.0)
        draw_boxes(axes, start, end, low, low + height, colour)


def _draw_arrows(axes: "Axes", panel: Panel, lines: Floats, ready: Floats, used: Floats) -> None:
    """Lead from the backward pass down to the line, and from there up to the forward pass."""
    backward = top(panel) + 0.88 * row_height(panel)
    forward = backward + row_height(panel)
    for line, begin, end in zip(lines, ready, used, strict=True):
        _draw_arrow(axes, begin, backward, line - 0.4, COLOURS["backward"])
        _draw_arrow(axes, end, line - 0.4, forward, MARKS["needed"])


def _draw_arrow(axes: "Axes", x: float, begin: float, end: float, colour: str) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (x, end), (x, begin), arrowprops=style | {"alpha": 0.6}, annotation_clip=True)


def _name_steps(axes: "Axes", computed: list[Step], height: float) -> None:
    """Write names on the bars that have room for them."""
    begin, end = axes.get_xlim()
    for step in computed:
        letters = LETTERS * MS * (step.end_s - step.start_s) / (end - begin)
        middle = MS * (step.start_s + step.end_s) / 2
        if letters > len(step.name) + 1 and begin <= middle <= end:
            colour = "white" if step.kind == "backward" else "black"
            text = plain(step.name)
            axes.text(middle, height, text, ha="center", va="center", fontsize=7, color=colour)


def _name_lines(axes: "Axes", panel: Panel) -> None:
    every = max(1, -(-panel.lines // MOST_NAMES))
    layers = panel.slack.layer[::every].tolist()
    rows = [top(panel) + row_height(panel) * (number + 0.44) for number in range(len(ROWS))]
    names = [*ROWS, *(_short(panel.found.job.layers[layer].name) for layer in layers)]
    axes.set_yticks([*rows, *range(0, panel.lines, every)], names, fontsize=7)
    axes.tick_params(axis="y", length=0)


def _short(name: str) -> str:
    return plain(name if len(name) <= LONGEST_NAME else f"...{name[-LONGEST_NAME:]}")
