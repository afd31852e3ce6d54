"""Draw the pictures of docs/idea.md and docs/how-to/explain.md from simulations."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bytelane.api import find_job, make_cluster
from bytelane.api import simulate as ask_api
from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, make_policy
from bytelane.job import Job, Layer, Tensor
from bytelane.report import draw_timeline
from bytelane.sim import Simulation, evaluate, simulate
from bytelane.units import format_bytes

EXAMPLES = Path(__file__).parents[2] / "examples"
SECOND = 8  # bytes that take a second
CLUSTER = Cluster.star(2, Link(float(SECOND)))
JOB = Job(
    "three layers",
    tuple(Layer(f"layer {i}", 1.0, 1.0) for i in range(3)),
    tuple(Tensor(f"layer {i}", s * SECOND, (i,)) for i, s in enumerate((2, 2, 3))),
)
# Name of each picture, and its policy and knobs.
CASES = {
    "fifo": ("fifo", None),
    "priority": ("bytescheduler", Knobs(partition_bytes=1000, credit_bytes=1)),
    "parts": ("bytescheduler", Knobs(partition_bytes=SECOND, credit_bytes=SECOND)),
}
COLOURS = ("#cc503e", "#edad08", "#1d6996")
SHOWN_S = 14.0


def ask(case: str) -> Simulation:
    """Simulate one of the cases."""
    policy, knobs = CASES[case]
    made = make_policy(policy, JOB, CLUSTER, knobs)
    return simulate(JOB, CLUSTER, made, "interpreted")


def draw_idea(folder: Path) -> None:
    """Draw computing and the link of each case."""
    for case in CASES:
        figure = Figure(figsize=(9, 1.9), layout="constrained")
        _draw_case(figure.subplots(), ask(case))
        figure.savefig(folder / f"idea-{case}.svg")


def _draw_case(axes: Any, found: Simulation) -> None:
    assert found.log is not None
    log, zero = found.log, found.log.iteration_start[0, -3]
    layers = len(JOB.layers)
    for row in range(log.step_start.shape[0]):
        for layer in range(layers):
            forward, backward = 2 * layer + 1, 3 * layers - 1 - layer
            for step, kind in ((forward, "forward"), (backward, "backward")):
                start, end = (
                    times[row, 0, step] - zero for times in (log.step_start, log.step_end)
                )
                _draw_bar(axes, 0, start, end, layer, kind)
        for operation, parts in enumerate(found.pieces.sub_tasks()):
            start, end = (times[row, operation] - zero for times in (log.sending, log.sent))
            _draw_bar(axes, 1, start, end, parts[0].tensor, "gradient")
    axes.axvline(found.iteration_s, color="black", linestyle="--", linewidth=1)
    text = f" an iteration: {found.iteration_s:g} s"
    axes.text(found.iteration_s, -0.12, text, va="bottom", fontsize=9)
    axes.set_yticks([0.4, 1.4], ["computing", "link"])
    axes.set_ylim(1.9, -0.35)
    axes.set_xlim(0, SHOWN_S)
    axes.set_xticks(range(0, int(SHOWN_S) + 1))
    axes.set_xlabel("seconds")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)


def _draw_bar(axes: Any, row: int, start: float, end: float, layer: int, kind: str) -> None:
    if not (start < SHOWN_S and end > 0):  # also for a time that was not recorded: NaN
        return
    colour = COLOURS[layer]
    filled = {"facecolors": colour, "edgecolor": "white"}
    hatched = {"facecolors": "white", "edgecolor": colour, "hatch": "////"}
    look = hatched if kind == "forward" else filled
    axes.broken_barh([(start, end - start)], (row, 0.8), linewidth=1, **look)
    left, right = max(start, 0.0), min(end, SHOWN_S)
    if right - left > 0.6:
        ink = "black" if kind == "forward" or layer == 1 else "white"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if kind == "forward" else None
        name = f"{kind[0].upper()}{layer}" if kind != "gradient" else f"layer {layer}"
        place = ((left + right) / 2, row + 0.42)
        axes.text(*place, name, ha="center", va="center", color=ink, fontsize=9, bbox=box)


def draw_price_of_parts(path: Path) -> None:
    """Draw the iteration time of VGG-16 over the size of parts, for three credits."""
    job, cluster = _vgg16()
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axes = figure.subplots()
    sizes = [2**i for i in range(16, 28)]
    for parts, marker, colour in zip((1, 2, 8), "os^", COLOURS, strict=True):
        times = [1e3 * iteration_s(job, cluster, size, parts * size) for size in sizes]
        axes.plot(sizes, times, marker=marker, color=colour, label=_in_flight(parts))
    for name, style in (("fifo", ":"), ("optimal", "--")):
        level = 1e3 * evaluate(job, cluster, make_policy(name, job, cluster))
        axes.axhline(level, color="black", linestyle=style, linewidth=1, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes[::2], [format_bytes(size) for size in sizes[::2]])
    axes.set_xlabel("size of a part")
    axes.set_ylabel("iteration (ms)")
    axes.set_ylim(bottom=250, top=520)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def draw_explained(path: Path) -> None:
    """Draw what ``bytelane timeline`` draws for the example of the page about it."""
    job = find_job(EXAMPLES / "vgg16-small.toml")
    usual, parts = ("fifo", None), ("bytescheduler", "512KiB")
    found = [
        ask_api(job, policy=policy, partition=partition, bandwidth="250Mbit")
        for policy, partition in (usual, parts)
    ]
    draw_timeline(found, path)


def iteration_s(job: Job, cluster: Cluster, partition_bytes: int, credit_bytes: int) -> float:
    """Return the iteration time with parts of this size and this credit."""
    knobs = Knobs(partition_bytes, credit_bytes)
    return evaluate(job, cluster, make_policy("bytescheduler", job, cluster, knobs))


def _vgg16() -> tuple[Job, Cluster]:
    where = make_cluster(workers=4, bandwidth="25Gbit", overhead="20us", latency="50us")
    return find_job("vgg16"), where


def _in_flight(parts: int) -> str:
    return "1 part in flight" if parts == 1 else f"{parts} parts in flight"
