"""Parameter servers against ring all-reduce, as workers are added (lecture, "Issue with PS").

Published without numbers: even several servers congest, and decentralised aggregation scales
better. Here: whole tensors in ready order, the bytes on the busiest link, and the time of an
iteration. A ring pays for its 2 (N - 1) steps in every message, and a server for one. A host with a
worker and a server sends its pushes and its replies by one link.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import Row, new_figure, out_folder, predict, print_table, save_csv, save_figure

from bytelane.cluster import Cluster, Link
from bytelane.job import Job, zoo

WORKERS = (2, 4, 8, 16, 32, 64, 128)
SERVERS = 4
BESIDE = "a server beside each worker"
RATE = 10e9 / 8
STEP_S = 10e-6  # as in the thesis

STYLES = {
    "1 server": ("#cc503e", "o", "-"),
    f"{SERVERS} servers": ("#edad08", "s", "-"),
    BESIDE: ("#73398c", "D", ":"),
    "ring": ("#1d6996", "v", "-"),
    "ring, fused": ("#1d6996", "^", "--"),
}


def make_cluster(arrangement: str, workers: int) -> Cluster:
    if arrangement.startswith("ring"):
        return Cluster.star(workers, Link(RATE, overhead_s=2 * (workers - 1) * STEP_S))
    link = Link(RATE, overhead_s=STEP_S)
    if arrangement == BESIDE:
        return Cluster.star(workers, link, servers=workers, shared_link=True)
    return Cluster.star(workers, link, servers=int(arrangement.split()[0]), colocated=False)


def busiest_bytes(arrangement: str, workers: int, model_bytes: int) -> float:
    """Count what the busiest host sends in an iteration (it receives as much)."""
    return make_cluster(arrangement, workers).load_factor * model_bytes


def compare(job: Job, workers: Sequence[int] = WORKERS) -> list[dict[str, float | str]]:
    """Return a row an arrangement and a number of workers."""
    rows: list[dict[str, float | str]] = []
    for arrangement in STYLES:
        for count in workers:
            cluster = make_cluster(arrangement, count)
            policy = "fusion" if arrangement == "ring, fused" else "fifo"
            found = predict(job, cluster, policy)
            size = busiest_bytes(arrangement, count, job.total_bytes)
            rows.append(
                {
                    "arrangement": arrangement,
                    "workers": count,
                    "busiest link, each way (MB)": size / 1e6,
                    "iteration (ms)": found.iteration_s * 1e3,
                    "least possible (ms)": max(job.compute_s, size / RATE) * 1e3,
                    "computing (ms)": job.compute_s * 1e3,
                }
            )
    return rows


def draw(rows: Sequence[Row], path: Path) -> None:
    figure, panels = new_figure(1, 2, 11, 4.2)
    for axes, column in zip(panels, ("busiest link, each way (MB)", "iteration (ms)"), strict=True):
        for arrangement, (colour, marker, dashes) in STYLES.items():
            mine = [row for row in rows if row["arrangement"] == arrangement]
            x = [float(row["workers"]) for row in mine]
            y = [float(row[column]) for row in mine]
            axes.plot(x, y, dashes, color=colour, marker=marker, label=arrangement)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(WORKERS, [str(count) for count in WORKERS])
        axes.minorticks_off()
        axes.set_xlabel("workers")
        axes.set_ylabel(column)
    panels[1].axhline(float(rows[0]["computing (ms)"]), color="black", ls=":", lw=1)
    panels[1].text(2, float(rows[0]["computing (ms)"]) * 0.8, "computing", fontsize=8)
    panels[1].legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def main() -> None:
    out = out_folder(__file__, "Parameter servers against ring all-reduce.")
    rows = compare(zoo.make("resnet50", accelerator="v100", batch=32))
    print_table(rows, "ResNet-50, 10 Gbit/s, whole tensors in ready order")
    print(
        "\n  A server's link carries N/M times the model. A ring's carries twice the model at\n"
        "  most, and so does that of a host with a worker and a server. So the congestion is of\n"
        "  few servers, not of parameter servers. A ring whose tensors travel alone pays\n"
        "  2 (N - 1) steps for each of them; fusing them mends that.\n"
    )
    save_csv(rows, out / "incast.csv")
    draw(rows, out / "incast.png")


if __name__ == "__main__":
    main()
