"""Colours, figures and files that all pictures share."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bytelane.cluster import Cluster
from bytelane.errors import InputError, MissingExtra
from bytelane.job import Job
from bytelane.terminal import one_line
from bytelane.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Readable for colour-blind people, and in grey: forward is light, backward dark.
COLOURS = {
    "forward": "#8ecae6",
    "backward": "#1d6996",
    "update": "#edad08",
    "outside": "#cccccc",
    "transfer": "#cc503e",
}
# Marks that are drawn beside the spans of a trace.
MARKS = {
    "later transfer": "#eda08f",
    "waiting": "#73398c",
    "slack": "#5a9a3c",
    "queued": "#b5b5b5",
    "needed": "#1a1a1a",
}
WAITING: dict[str, Any] = {
    "facecolor": "white",
    "edgecolor": MARKS["waiting"],
    "hatch": "/////",
    "linewidth": 0.6,
}
ENDINGS = (".svg", ".png")


def require_picture(path: str | Path) -> None:
    """Refuse a file that no picture can be written to, before anything is drawn."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: a picture is a file that ends in {' or '.join(ENDINGS)}")


def new_figure(width: float, height: float) -> "Figure":
    """Make an empty figure; sizes in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra(
            "pictures need matplotlib; install it with: pip install 'bytelane[plot]'"
        ) from None
    except ValueError as error:  # of its settings, say MPLBACKEND in the environment
        raise InputError(f"matplotlib cannot be used: {error}") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a picture in the format of its suffix; the same picture is the same bytes."""
    from matplotlib import rc_context

    require_picture(path)
    metadata: dict[str, Any] = {"Date": None} if Path(path).suffix.lower() == ".svg" else {}
    with rc_context({"svg.hashsalt": "bytelane"}), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing"
        )  # a name in letters that the font lacks
        figure.savefig(path, dpi=150, metadata=metadata)


def plain(name: str) -> str:
    """Escape dollar signs, which begin a formula, and characters that no SVG file may hold."""
    return one_line(name).replace("$", r"\$")


def heading(job: Job, cluster: Cluster) -> str:
    """Describe job and cluster, in two lines."""
    tensors = f"{len(job.tensors)} tensor{'s' if len(job.tensors) != 1 else ''}"
    workers = f"{cluster.workers} worker{'s' if cluster.workers != 1 else ''}"
    if len(set(cluster.compute_factors)) > 1:
        workers += f" (the slowest computes {max(cluster.compute_factors):g} times as long)"
    servers = f"{cluster.servers} server{'s' if cluster.servers != 1 else ''}"
    beside = f"{servers} beside them" if cluster.colocated else f"{servers} apart"
    beside += " on the same links" if cluster.shared_link else ""
    how = "all-reduce" if cluster.sync == "allreduce" else beside
    size = format_bytes(job.total_bytes)
    return f"{plain(job.name)}: {size} in {tensors}\n{workers}, {how}, {cluster.link}"
