"""Draw a sweep: how the iteration time changes along the axis with the most values."""

from collections.abc import Sequence
from itertools import chain
from math import inf
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from bytelane.errors import InputError
from bytelane.report.style import new_figure, plain, save_figure
from bytelane.report.sweep import PLACE, Axis, common_ground, knob_axes, swept_axes
from bytelane.sim.sweep import Answer, WhatIf

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 10
MOST_PANELS = 12
MOST_TICKS = 8
MOST_MARKS = 20
# Paul Tol's muted colours can be told apart by colour-blind people, the marks also in grey.
COLOURS = (
    *("#332288", "#cc6677", "#117733", "#ddcc77", "#88ccee"),
    *("#882255", "#44aa99", "#aa4499", "#999933", "#000000"),
)
MARKS = "osD^vPX<>*"
OPTIMUM = "optimum"

Line = dict[float, float]
"""Milliseconds by x."""


class Layout(NamedTuple):
    """The axes that are drawn along x, as panels, and as lines beside the policy."""

    x: Axis
    panels: list[Axis]
    lines: list[Axis]

    def panel(self, setting: WhatIf) -> str:
        return ", ".join(axis.phrase(setting) for axis in self.panels)

    def line(self, setting: WhatIf) -> str:
        own = [axis for axis in self.lines if axis.value(setting) is not None]
        return ", ".join([setting.policy, *(axis.phrase(setting) for axis in own)])

    def labels(self, settings: Sequence[WhatIf]) -> list[str]:
        """Return the names of all lines; the optimum is drawn whether it was asked for or not."""
        return list(dict.fromkeys(self.line(s) for s in settings if s.policy != "optimal"))


def make_layout(settings: Sequence[WhatIf]) -> Layout:
    """Choose the axes of a plot; refuse a sweep that cannot be drawn."""
    swept = swept_axes(settings)
    numbers = [axis for axis in swept if axis.is_number]
    if not numbers:
        raise InputError("a plot needs several values of some number, such as 1Gbit,2Gbit,5Gbit")
    x = max(numbers, key=lambda axis: len(_values(axis, settings)))
    layout = Layout(
        x,
        panels=[axis for axis in PLACE if axis in swept and axis is not x],
        lines=[axis for axis in knob_axes(settings) if axis in swept and axis is not x],
    )
    count = len({layout.panel(setting) for setting in settings})
    if count > MOST_PANELS:
        raise InputError(
            f"a plot over {x.name} would have {count} panels, one for each combination of "
            f"{', '.join(axis.name for axis in layout.panels)}; only {MOST_PANELS} can be read"
        )
    return layout


def draw_sweep(answers: Sequence[Answer], path: str | Path) -> None:
    """Write a picture: a panel for each job and cluster, a line for each policy and its knobs.

    With too many lines each policy has one, with its best knobs at every point.
    """
    save_figure(sweep_figure(answers), path)


def sweep_figure(answers: Sequence[Answer]) -> "Figure":
    """Draw the plot without writing it."""
    settings = [answer.asked for answer in answers]
    layout, title = make_layout(settings), [common_ground(settings)]
    if layout.lines and len(layout.labels(settings)) > MOST_LINES:
        layout = layout._replace(lines=[])
        title.append("each policy with the best of its knobs at every point")
    panels: dict[str, list[Answer]] = {}
    for answer in answers:
        panels.setdefault(layout.panel(answer.asked), []).append(answer)
    columns = {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = new_figure(3 + 4 * columns, 1.5 + 3.4 * rows)
    xs, labels = _values(layout.x, settings), layout.labels(settings)
    for place, (name, found) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        _draw_lines(axes, _lines(found, layout, xs), labels)
        _scale(axes, layout.x, xs)
        axes.set_title(plain(name), fontsize=9)
    _add_words(figure, title, labels)
    return figure


def _add_words(figure: "Figure", title: Sequence[str], labels: Sequence[str]) -> None:
    width = int(figure.get_figwidth())
    lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
    figure.legend(
        handles=[lines[plain(label)] for label in (*labels, OPTIMUM)],
        loc="outside lower center",
        ncols=width // 3,
        frameon=False,
        fontsize=9,
    )
    wrapped = chain.from_iterable(wrap(plain(sentence), 10 * width) for sentence in title)
    figure.suptitle("\n".join(wrapped), x=0.01, ha="left", fontsize=11, fontweight="bold")


def _values(axis: Axis, settings: Sequence[WhatIf]) -> list[float]:
    return sorted({axis.value(setting) for setting in settings} - {None})


def _lines(answers: Sequence[Answer], layout: Layout, xs: Sequence[float]) -> dict[str, Line]:
    """Return the lines by their labels; a line whose settings have no x goes from end to end."""
    lines: dict[str, Line] = {}
    for answer in answers:
        label, x = layout.line(answer.asked), layout.x.value(answer.asked)
        for place in xs if x is None else (x,):
            line = lines.setdefault(label, {})
            line[place] = min(line.get(place, inf), answer.iteration_s * 1e3)
            lines.setdefault(OPTIMUM, {})[place] = answer.optimal_s * 1e3
    return lines


def _draw_lines(axes: "Axes", lines: dict[str, Line], labels: Sequence[str]) -> None:
    """Draw later lines thinner, so that those below can be seen where several coincide."""
    for i, label in enumerate(labels):
        if label in lines:
            axes.plot(
                *_columns(lines[label]),
                color=COLOURS[i % len(COLOURS)],
                marker=MARKS[i % len(MARKS)],
                markevery=1 + len(lines[label]) // MOST_MARKS,
                linewidth=1 + 2 * (1 - i / len(labels)),
                markersize=4 + 4 * (1 - i / len(labels)),
                label=plain(label),
            )
    axes.plot(*_columns(lines[OPTIMUM]), "--", color="black", linewidth=0.9, label=OPTIMUM)


def _columns(line: Line) -> list[tuple[float, ...]]:
    return list(zip(*sorted(line.items()), strict=True))


def _scale(axes: "Axes", x: Axis, xs: Sequence[float]) -> None:
    """Use logarithmic axes where values span a decade; print units at the ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    shortest, longest = axes.dataLim.intervaly
    if longest >= 10 * shortest > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g} ms")
    if xs[-1] >= 10 * xs[0] > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    if len(xs) <= MOST_TICKS:
        axes.set_xticks(xs)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: x.show(value)))
    axes.tick_params(labelsize=8)
    axes.set_xlabel(x.name)
    axes.set_ylabel("iteration time")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
