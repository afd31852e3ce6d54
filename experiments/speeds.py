"""Training speed under a parameter server, policy by policy: what two of the experiments share.

There are as many servers as workers, on hosts of their own, and every host has a duplex link. (With
a server on each worker's host, its replies would share the link with the worker's pushes.) Times
are the zoo's estimates for a V100 and 32 samples per worker: only shapes and ratios mean something.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from common import draw_curves, new_figure, predict, progress

from bytelane.cluster import Cluster, Link
from bytelane.job import Job, zoo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "transformer-base": "Transformer"}
BATCH = 32
# Assumed; the lecture names none. About what one RDMA message costs.
OVERHEAD_S, LATENCY_S = 20e-6, 50e-6
# What "tuned" may choose from: partition (bytes), and credit in parts.
CHOICES = [(part << 10, credit) for part in (256, 1024, 4096, 16384) for credit in (2, 4, 8)]
POLICIES = ("sequential", "fifo", "p3", "bytescheduler", "tuned", "optimal")

Speeds = Mapping[str, float]
Cells = Mapping[tuple[str, int], Speeds]
"""By model, and by what is varied: a number of workers, or a rate."""


def make_cluster(workers: int, gigabits: float, *, ideal: bool = False) -> Cluster:
    """As many servers as workers, on their own hosts; an ideal link costs nothing but bytes."""
    costs = (0.0, 0.0) if ideal else (OVERHEAD_S, LATENCY_S)
    return Cluster.star(workers, Link(gigabits * 1e9 / 8, *costs), servers=workers, colocated=False)


def speeds(job: Job, workers: int, gigabits: float) -> Speeds:
    """Return samples a second of all workers together, by policy, and what linear scaling is."""
    cluster = make_cluster(workers, gigabits)
    seconds = {
        name: predict(job, cluster, name).iteration_s for name in POLICIES if name != "tuned"
    }
    seconds["tuned"] = min(
        predict(job, cluster, "bytescheduler", part, credit * part).iteration_s
        for part, credit in CHOICES
    )
    seconds["linear"] = job.compute_s
    return {name: workers * BATCH / seconds[name] for name in (*POLICIES, "linear")}


def speeds_over(
    models: Sequence[str], values: Sequence[int], what: str, ask: Callable[[Job, int], Speeds]
) -> Cells:
    """Ask for the speeds of each model at each value."""
    jobs = {model: make_job(model) for model in models}
    places = [(model, value) for model in models for value in values]
    return {(model, value): ask(jobs[model], value) for model, value in progress(places, what)}


def speed_rows(cells: Cells, varied: str) -> list[dict[str, str | float]]:
    """Return a row a cell."""
    return [
        {
            "model": MODELS[model],
            varied: value,
            **{f"{name} (samples/s)": found[name] for name in (*POLICIES, "linear")},
            "over fifo (%)": gain_percent(found["tuned"], found["fifo"]),
        }
        for (model, value), found in cells.items()
    ]


def draw_speeds(
    cells: Cells, names: Sequence[str], scale: Callable[[Speeds, str], float]
) -> "tuple[Figure, list[Axes]]":
    """Draw a panel a model, in it a curve a policy."""
    figure, panels = new_figure(1, len(MODELS), 12, 4)
    for axes, (model, title) in zip(panels, MODELS.items(), strict=True):
        mine = {value: found for (of, value), found in cells.items() if of == model}
        curves = {name: [scale(found, name) for found in mine.values()] for name in names}
        draw_curves(axes, list(mine), curves)
        axes.set_title(title, loc="left", fontsize=10)
    return figure, panels


def make_job(model: str) -> Job:
    return zoo.make(model, accelerator="v100", batch=BATCH)


def gain_percent(better: float, worse: float) -> float:
    return 100 * (better / worse - 1)


def largest_gain(cells: Cells, of: str, over: str, unit: str) -> tuple[float, str]:
    """Return the largest gain in speed, in percent, and where it was."""
    return max(
        (gain_percent(found[of], found[over]), f"{MODELS[model]}, {value} {unit}")
        for (model, value), found in cells.items()
    )


def ceiling_percent(job: Job, gigabits: float) -> float:
    """Return what removing all waiting can gain over no overlap at all: at most 200 %.

    Without overlap an iteration is computing + push + pull; with all of it, the longest of them.
    """
    way_s = job.total_bytes / (gigabits * 1e9 / 8)
    return gain_percent(job.compute_s + 2 * way_s, max(job.compute_s, way_s))
