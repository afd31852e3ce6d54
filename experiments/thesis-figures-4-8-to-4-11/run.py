"""Timelines of one iteration: computing, transfers, and when each is needed (thesis, 4.8 to 4.11).

The thesis shows 1 and 5 Gbit/s and its text speaks of 10 and 20 as well; here are all four. A block
is a fused all-reduce, over the lines of the layers whose gradients it carries.
"""

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from common import Row, out_folder, print_table, save_csv
from thesis import FIFO, PRIORITY, make_thesis_cluster, make_thesis_policy

from bytelane.job import zoo
from bytelane.report import draw_timeline
from bytelane.sim import Simulation, simulate
from bytelane.sim.slack import tensor_slack
from bytelane.sim.steady import steady

RATES = (1, 5, 10, 20)


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
    """Return an iteration's transfers by group; the last gradient of a group makes it ready."""
    slack, one, pieces = tensor_slack(found), steady(found), found.pieces
    rows = []
    for group in range(pieces.operation_count):
        tensors = pieces.tensor[pieces.operation == group]
        size = int((pieces.stop - pieces.start)[pieces.operation == group].sum())
        times = (
            np.max(slack.ready_s[tensors]),
            one.launched[0, group],
            one.known[0, group],
            np.min(slack.needed_s[tensors]),
        )
        rows.append(Transfer(group, size, *(float(time) for time in times)))
    return rows


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
            "to spare (ms)": (t.needed_s - t.end_s) * 1e3,
        }
        for t in found
    ]


def main() -> None:
    out = out_folder(__file__, "Draw the timelines of Figures 4.8 to 4.11 of the thesis.")
    rows: list[Row] = []
    summary: list[Row] = []
    for rate in RATES:
        simulations = [simulate_thesis(rate, cell) for cell in (FIFO, PRIORITY)]
        for cell, simulation in zip((FIFO, PRIORITY), simulations, strict=True):
            found = transfers(simulation)
            rows += table(rate, cell, found)
            summary.append(
                {
                    "link (Gbit/s)": rate,
                    "queue": cell,
                    "backward ends (ms)": found[0].ready_s * 1e3,
                    "forward begins (ms)": simulation.iteration_s * 1e3,
                    "longest wait for the link (ms)": max(t.start_s - t.ready_s for t in found)
                    * 1e3,
                    "least to spare (ms)": min(t.needed_s - t.end_s for t in found) * 1e3,
                    "groups in time": f"{sum(t.end_s <= t.needed_s for t in found)} of 18",
                }
            )
        for ending in ("png", "svg"):
            draw_timeline(simulations, out / f"timeline-{rate}-gbit.{ending}")
            print(f"  wrote {out / f'timeline-{rate}-gbit.{ending}'}")
    print_table(summary, "One iteration")
    print(
        "\n  Published at 1 Gbit/s: backward over around 900 ms, forward begins at 1100 (FIFO)\n"
        "  and 950 ms (priority), 150 ms earlier; from 5 Gbit/s on no transfer waits for another.\n"
    )
    save_csv(rows, out / "transfers.csv")


if __name__ == "__main__":
    main()
