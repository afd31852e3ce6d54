"""Speed over the number of workers, under a parameter server (lecture, "Results: scalability").

Published (MXNet, parameter server, RDMA): up to 170 % faster than the framework alone, and close to
linear scaling. Only shapes can be compared: the lecture names neither times nor baseline speeds.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import Row, out_folder, print_table, save_csv, save_figure
from speeds import (
    MODELS,
    POLICIES,
    Cells,
    draw_speeds,
    largest_gain,
    speed_rows,
    speeds,
    speeds_over,
)

WORKERS = (8, 16, 32, 64)
# A link of 100 Gbit/s shared by eight accelerators; with a whole one each, nothing waits.
GIGABITS = 12.5
PUBLISHED_PERCENT = 170


def scaling(models: Sequence[str] = tuple(MODELS), workers: Sequence[int] = WORKERS) -> Cells:
    return speeds_over(models, workers, "scaling", lambda job, count: speeds(job, count, GIGABITS))


def rows(cells: Cells) -> list[Row]:
    return [
        {**row, "of linear (%)": 100 * found["tuned"] / found["linear"]}
        for row, found in zip(speed_rows(cells, "workers"), cells.values(), strict=True)
    ]


def draw(cells: Cells, path: Path) -> None:
    names = (*POLICIES, "linear")
    figure, panels = draw_speeds(cells, names, lambda found, name: found[name] / 1e3)
    for axes in panels:
        axes.set_xticks(WORKERS)
        axes.set_xlabel("workers")
        axes.set_ylim(0)
    panels[0].set_ylabel("speed (thousand samples/s)")
    panels[0].legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def main() -> None:
    out = out_folder(__file__, "Speed over the number of workers under a parameter server.")
    cells = scaling()
    print_table(rows(cells), f"A server for each worker, {GIGABITS} Gbit/s, 32 samples a worker")
    over_fifo, where = largest_gain(cells, "tuned", "fifo", "workers")
    over_nothing, there = largest_gain(cells, "tuned", "sequential", "workers")
    print(
        f"\n  published, over the framework alone: up to {PUBLISHED_PERCENT} %\n"
        f"  ours, over fifo:                     up to {over_fifo:.0f} % ({where})\n"
        f"  ours, over no overlap at all:        up to {over_nothing:.0f} % ({there})\n"
        "  ceiling over no overlap at all:      200 % (servers on hosts of their own), 100 % (one\n"
        "                                       serial link, or servers on the workers' hosts)\n\n"
        "  The published figure is out of reach over a fifo that overlaps with backward, and in\n"
        "  reach over a baseline that overlaps nothing. The lecture does not say which it was.\n"
        "  Speed grows in proportion to the workers under every policy, slow ones as well: with a\n"
        "  server for each of them, this model has nothing that grows with their number. Close to\n"
        "  the linear line itself comes only what computes longer than it sends (ResNet-50).\n"
    )
    save_csv(rows(cells), out / "scaling.csv")
    draw(cells, out / "scaling.png")


if __name__ == "__main__":
    main()
