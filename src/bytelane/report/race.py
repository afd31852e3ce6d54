"""Draw measured iteration times as bars, beside the bound."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bytelane.report.style import COLOURS, MARKS, WAITING, new_figure, plain, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MS = 1e3


class Racer(NamedTuple):
    """One bar: the median iteration time, and that of each repetition."""

    name: str
    iteration_s: float
    repetitions_s: Sequence[float] = ()


def draw_race(
    title: str,
    racers: Sequence[Racer],
    compute_s: float,
    communication_s: float,
    path: str | Path,
) -> None:
    """Write one bar per racer, split at the bound, then computing and communication alone."""
    bound_s = max(compute_s, communication_s)
    figure = new_figure(9, 1.7 + 0.4 * (len(racers) + 2))
    axes = figure.subplots()
    for place, racer in enumerate(racers):
        _draw_racer(axes, place, racer, bound_s)
    alone = {"compute": compute_s, "communication": communication_s}
    for place, (name, seconds) in enumerate(alone.items(), start=len(racers)):
        colour = COLOURS["backward" if name == "compute" else "transfer"]
        axes.barh(place, MS * seconds, 0.35, color=colour, zorder=2)
        _write(axes, place, seconds, bound_s)
    axes.axvline(MS * bound_s, color="black", linestyle="--", linewidth=1, label="bound", zorder=4)
    names = [plain(racer.name) for racer in racers] + [f"{name} alone" for name in alone]
    times = [seconds for racer in racers for seconds in (racer.iteration_s, *racer.repetitions_s)]
    _frame(axes, names, max(bound_s, *times))
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11, weight="bold")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    save_figure(figure, path)


def _draw_racer(axes: "Axes", place: int, racer: Racer, bound_s: float) -> None:
    kept, lost = min(racer.iteration_s, bound_s), max(racer.iteration_s - bound_s, 0.0)
    first = place == 0
    axes.barh(place, MS * kept, 0.7, color=COLOURS["forward"], zorder=2)
    label = "above the bound" if first else None
    axes.barh(place, MS * lost, 0.7, MS * kept, zorder=2, label=label, **WAITING)
    label = "a repetition" if first and racer.repetitions_s else None
    times = [MS * seconds for seconds in racer.repetitions_s]
    axes.plot(times, [place] * len(times), "o", ms=4, color=MARKS["needed"], label=label, zorder=5)
    _write(axes, place, racer.iteration_s, bound_s)


def _write(axes: "Axes", place: int, seconds: float, bound_s: float) -> None:
    where = axes.get_yaxis_transform()
    text = f"{MS * seconds:.1f} ms   {seconds / bound_s:.2f}x"
    axes.text(1.2, place, text, ha="right", va="center", fontsize=9, transform=where)


def _frame(axes: "Axes", names: Sequence[str], longest_s: float) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, 1.04 * MS * longest_s)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("one iteration (ms), and how many times the bound")
    axes.spines[["top", "right"]].set_visible(False)
