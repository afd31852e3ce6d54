"""Draw a bar chart of the iteration time under each policy, with fifo and the optimum."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bytelane.report.style import COLOURS, WAITING, heading, new_figure, plain, save_figure
from bytelane.sim import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MS = 1e3


def draw_bars(found: Mapping[str, Simulation], path: str | Path) -> None:
    """Write one bar per policy, the fastest on top; fifo and the optimum must be among them."""
    save_figure(bars_figure(found), path)


def bars_figure(found: Mapping[str, Simulation]) -> "Figure":
    """Draw the bar chart without writing it."""
    fifo, optimum = found["fifo"], found["optimal"]
    figure = new_figure(9, 1.8 + 0.34 * len(found))
    axes = figure.subplots()
    _draw_bars(axes, dict(sorted(found.items(), key=lambda item: item[1].iteration_s)))
    for one, name, dashes in ((fifo, "fifo", ":"), (optimum, "the optimum", "--")):
        axes.axvline(MS * one.iteration_s, color="black", linestyle=dashes, label=name, zorder=3)
    figure.suptitle(heading(fifo.job, fifo.cluster), x=0.01, ha="left", fontsize=11, weight="bold")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _draw_bars(axes: "Axes", found: dict[str, Simulation]) -> None:
    names = [plain(name) for name in found]
    total = [MS * one.iteration_s for one in found.values()]
    computing = [min(MS * one.compute_s, MS * one.iteration_s) for one in found.values()]
    rest = [whole - busy for whole, busy in zip(total, computing, strict=True)]
    axes.barh(names, computing, 0.7, color=COLOURS["backward"], label="computing", zorder=2)
    axes.barh(names, rest, 0.7, computing, label="computing waits", zorder=2, **WAITING)
    axes.set_xlim(0, 1.02 * max(total) or 1.0)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("one iteration (ms)")
    axes.spines[["top", "right"]].set_visible(False)
    _write_column(axes, 1.09, "iteration", [f"{whole:.1f} ms" for whole in total])
    gains = [gain_percent(found["fifo"].iteration_s, one.iteration_s) for one in found.values()]
    _write_column(axes, 1.2, "over fifo", [format_gain(gain) for gain in gains])


def gain_percent(before_s: float, after_s: float) -> float:
    """Return how much faster the second is, in per cent of the speed of the first."""
    return 100 * (before_s / after_s - 1) if after_s else 0.0


def format_gain(percent: float) -> str:
    """Print a gain with its sign."""
    return f"{round(percent, 1) + 0.0:+.1f} %"  # adding 0.0 turns -0.0 into 0.0


def _write_column(axes: "Axes", right: float, title: str, cells: list[str]) -> None:
    """Write a column of numbers beside the bars."""
    where = axes.get_yaxis_transform()
    for place, text in enumerate([title, *cells], start=-1):
        weight = "bold" if text is title else "normal"
        axes.text(
            right, place, text, ha="right", va="center", fontsize=9, weight=weight, transform=where
        )
