"""What the experiments share: arguments, tables, CSV files and the style of the pictures.

A table is a list of rows, a row maps a column's title to a cell, and a title says its unit.
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from bytelane.cluster import Cluster
from bytelane.core import choose_knobs, make_policy
from bytelane.job import Job
from bytelane.sim import Simulation, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cell = str | int | float
Row = Mapping[str, Cell]
T = TypeVar("T", covariant=True)

# Told apart by colour-blind people, and by marker in grey.
INK = {
    "sequential": ("#999999", "v"),
    "fifo": ("#1d6996", "o"),
    "p3": ("#edad08", "s"),
    "bytescheduler": ("#cc503e", "D"),
    "tuned": ("#73398c", "^"),
    "optimal": ("black", ""),
    "linear": ("#555555", ""),
}
DASHED = {"optimal": "--", "linear": ":"}


# Hundreds of small simulations: each alone would not be worth compiling, together they are.
COMPILED = find_spec("numba") is not None


class Countable(Sized, Iterable[T], Protocol[T]):
    """Anything with a length that can be gone through."""


def out_folder(file: str, about: str) -> Path:
    """Read the only argument, --out; without it, results go to out/NAME."""
    name = Path(file).parent.name
    parser = argparse.ArgumentParser(prog=f"experiments/{name}/run.py", description=about)
    parser.add_argument("--out", type=Path, default=Path("out") / name, metavar="FOLDER")
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def predict(
    job: Job,
    cluster: Cluster,
    policy: str,
    partition_bytes: int | None = None,
    credit_bytes: int | None = None,
) -> Simulation:
    """Simulate a policy by name, fit for sweeps."""
    knobs = choose_knobs(policy, partition_bytes, credit_bytes)
    made = make_policy(policy, job, cluster, knobs)
    return simulate(job, cluster, made, "compiled" if COMPILED else "auto")


def print_table(rows: Sequence[Row], title: str = "") -> None:
    """Print rows under their titles, numbers to the right."""
    lines = [list(rows[0]), *([_text(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [not isinstance(cell, str) for cell in rows[0].values()]
    print(f"\n{title}" if title else "")
    for line in lines:
        cells = zip(line, widths, numeric, strict=True)
        print("  " + "  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in cells).rstrip())


def save_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the same rows, with all their digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"  wrote {path}")


def progress(items: Countable[T], what: str) -> Iterator[T]:
    """Go through the items; count them on a terminal."""
    for number, item in enumerate(items, start=1):
        if sys.stderr.isatty():
            end = "\n" if number == len(items) else ""
            print(f"\r{what} {number}/{len(items)}", end=end, file=sys.stderr, flush=True)
        yield item


def new_figure(
    rows: int, columns: int, width: float, height: float, *, share_y: bool = False
) -> "tuple[Figure, list[Axes]]":
    """Make a figure; return it with its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    axes = [panels[r, c] for r in range(rows) for c in range(columns)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_curves(axes: "Axes", x: Sequence[float], curves: Mapping[str, Sequence[float]]) -> None:
    """Draw one line a policy, in that policy's own colour and marker."""
    for name, values in curves.items():
        colour, marker = INK[name]
        style = DASHED.get(name, "-")
        axes.plot(x, values, style, color=colour, marker=marker, markersize=5, label=name)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a picture in the format that its name says."""
    figure.savefig(path, dpi=130)
    print(f"  wrote {path}")


def _text(cell: Cell) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
