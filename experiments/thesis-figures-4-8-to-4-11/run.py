"""Timelines of one iteration: computing, transfers, and when each is needed (thesis, 4.8 to 4.11).

The thesis shows 1 and 5 Gbit/s and its text speaks of 10 and 20 as well; here are all four. Blue is
a fused all-reduce, a grey line the time it waited for the link, and an orange mark the moment at
which the next forward pass has finished everything before it. Blue beyond orange is a stall.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import Row, new_figure, out_folder, print_table, save_csv, save_figure
from thesis import FIFO, PRIORITY, fused_upwards, make_thesis_cluster, make_thesis_policy

from bytelane.job import zoo
from bytelane.report.overlay import COLOURS
from bytelane.sim import Simulation, simulate
from bytelane.trace import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATES = (1, 5, 10, 20)
BLUE, ORANGE, GREY = "#3b7dd8", "#f28e2b", "#bbbbbb"
SHOWN_MS = 1450


class Transfer(NamedTuple):
    """One fused all-reduce; seconds since the forward pass began."""

    group: int
    bytes: int
    ready_s: float
    start_s: float
    end_s: float
    needed_s: float


def simulate_thesis(rate: float, cell: str) -> Simulation:
    job = zoo.make("thesis-4")
    policy = make_thesis_policy(job, cell)
    return simulate(job, make_thesis_cluster(rate), policy, "interpreted")


def transfers(found: Simulation) -> list[Transfer]:
    """Return the first kept iteration's transfers, by group."""
    groups = fused_upwards(found.job)
    names = [layer.name for layer in found.job.layers]
    backward = {s.name: s for s in _spans(found, "backward", 0)}
    forward = {s.name: s for s in _spans(found, "forward", 1)}
    rows = []
    for span in _spans(found, "transfer", 0):
        lowest = names.index(span.name.partition(" + ")[0])
        before = forward[names[lowest - 1]] if lowest else backward[names[0]]
        ready_s = backward[names[lowest]].end_s
        rows.append(
            Transfer(groups[lowest], span.bytes, ready_s, span.start_s, span.end_s, before.end_s)
        )
    return sorted(rows)


def table(rate: float, cell: str, found: list[Transfer]) -> list[Row]:
    return [
        {
            "link (Gbit/s)": rate,
            "queue": cell,
            "group": t.group,
            "size (MB)": t.bytes / 1e6,
            "ready (ms)": t.ready_s * 1e3,
            "start (ms)": t.start_s * 1e3,
            "end (ms)": t.end_s * 1e3,
            "needed (ms)": t.needed_s * 1e3,
            "slack (ms)": (t.needed_s - t.end_s) * 1e3,
        }
        for t in found
    ]


def _spans(found: Simulation, kind: str, iteration: int) -> list[Span]:
    return [s for s in found.trace.spans if s.kind == kind and s.iteration == iteration]


def draw_panel(axes: "Axes", found: Simulation, title: str) -> None:
    for row, kind in enumerate(("backward", "forward")):
        bars = [(1e3 * s.start_s, 1e3 * s.seconds) for k in (0, 1) for s in _spans(found, kind, k)]
        axes.broken_barh(bars, (row, 0.8), facecolors=COLOURS[kind], edgecolor="white", lw=0.3)
    rows = transfers(found)
    for t in rows:
        y = 2.4 + t.group
        axes.plot([1e3 * t.ready_s, 1e3 * t.start_s], [y + 0.4] * 2, color=GREY, lw=1.5)
        place = (y, 0.8)
        axes.broken_barh([(1e3 * t.start_s, 1e3 * (t.end_s - t.start_s))], place, facecolors=BLUE)
        axes.plot([1e3 * t.needed_s] * 2, [y - 0.05, y + 0.85], color=ORANGE, lw=2.5, zorder=0)
    axes.axvline(1e3 * found.iteration_s, color="black", lw=0.8, ls="--")
    axes.set_title(f"{title}: {1e3 * found.iteration_s:.1f} ms (dashed)", loc="left", fontsize=10)
    labels = ["backward", "forward"] + [f"group {t.group}" for t in rows]
    places = [0.4, 1.4] + [2.8 + t.group for t in rows]
    axes.set_yticks(places, labels, fontsize=6)
    axes.set_ylim(2.6 + len(rows), -0.3)
    axes.set_xlim(0, SHOWN_MS)


def draw(rate: float, out: Path) -> None:
    from matplotlib.patches import Patch

    figure, panels = new_figure(2, 1, 11, 8)
    for axes, cell in zip(panels, (FIFO, PRIORITY), strict=True):
        draw_panel(axes, simulate_thesis(rate, cell), f"{rate:g} Gbit/s, {cell}")
    panels[-1].set_xlabel("time since the forward pass began (ms)")
    legend = {"transfer": BLUE, "waits for the link": GREY, "needed": ORANGE}
    handles = [Patch(color=colour, label=text) for text, colour in legend.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False)
    for ending in ("png", "svg"):
        save_figure(figure, out / f"timeline-{rate:g}-gbit.{ending}")


def main() -> None:
    out = out_folder(__file__, "Draw the timelines of Figures 4.8 to 4.11 of the thesis.")
    rows: list[Row] = []
    summary: list[Row] = []
    for rate in RATES:
        for cell in (FIFO, PRIORITY):
            found = transfers(simulate_thesis(rate, cell))
            rows += table(rate, cell, found)
            summary.append(
                {
                    "link (Gbit/s)": rate,
                    "queue": cell,
                    "backward ends (ms)": found[0].ready_s * 1e3,
                    "forward begins (ms)": simulate_thesis(rate, cell).iteration_s * 1e3,
                    "longest wait for the link (ms)": max(t.start_s - t.ready_s for t in found)
                    * 1e3,
                    "least slack (ms)": min(t.needed_s - t.end_s for t in found) * 1e3,
                    "groups in time": f"{sum(t.end_s <= t.needed_s for t in found)} of 18",
                }
            )
        draw(rate, out)
    print_table(summary, "One iteration")
    print(
        "\n  Published at 1 Gbit/s: backward over around 900 ms, forward begins at 1100 (FIFO)\n"
        "  and 950 ms (priority), 150 ms earlier; from 5 Gbit/s on no transfer waits for another.\n"
    )
    save_csv(rows, out / "transfers.csv")


if __name__ == "__main__":
    main()
