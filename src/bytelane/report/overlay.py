"""Draw a predicted and a real iteration over each other."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bytelane.report.style import COLOURS, new_figure, plain, save_figure
from bytelane.trace import Span, Trace, spread
from bytelane.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Pair(NamedTuple):
    """One run, predicted and real."""

    title: str
    predicted: Trace
    real: Trace
    predicted_s: float
    real_s: float


def draw_overlay(pairs: Sequence[Pair], path: str | Path) -> None:
    """Write one picture: a panel per run with four rows (predicted and real; compute and link)."""
    figure = new_figure(11, 0.6 + 2.6 * len(pairs))
    panels = figure.subplots(len(pairs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, pair in zip(panels, pairs, strict=True):
        _draw_panel(axes, pair)
    panels[-1].set_xlabel("time since the forward pass began (ms)")
    from matplotlib.patches import Patch

    kinds = {s.kind for p in pairs for t in (p.predicted, p.real) for s in t.spans}
    handles = [Patch(color=c, label=kind) for kind, c in COLOURS.items() if kind in kinds]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
    save_figure(figure, path)


def _draw_panel(axes: "Axes", pair: Pair) -> None:
    rows = ("compute, predicted", "compute, real", "link, predicted", "link, real")
    for trace, offset, seconds in (
        (pair.predicted, 0, pair.predicted_s),
        (pair.real, 1, pair.real_s),
    ):
        computing = [span for span in trace.spans if span.kind != "transfer"]
        transfers = [span for span in trace.spans if span.kind == "transfer"]
        _draw_row(axes, [(0, span) for span in computing], row=offset)
        _draw_row(axes, spread(transfers), row=2 + offset)
        axes.axvline(seconds * 1e3, color="black", linestyle=("--", "-")[offset], linewidth=1)
    error = pair.real_s / pair.predicted_s - 1
    axes.set_title(
        f"{plain(pair.title)}: predicted {format_seconds(pair.predicted_s)} (dashed), "
        f"real {format_seconds(pair.real_s)} (solid), {error:+.1%}",
        loc="left",
        fontsize=10,
    )
    axes.set_yticks([0.4, 1.4, 2.4, 3.4], rows, fontsize=8)
    axes.set_ylim(4, -0.1)
    axes.set_xlim(0, 1.75e3 * max(pair.predicted_s, pair.real_s))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_row(axes: "Axes", placed: Sequence[tuple[int, Span]], row: int) -> None:
    tracks = max((track for track, _ in placed), default=0) + 1
    height = 0.8 / tracks
    for kind, colour in COLOURS.items():
        for track in range(tracks):
            bars = [
                (span.start_s * 1e3, span.seconds * 1e3)
                for t, span in placed
                if t == track and span.kind == kind
            ]
            place = (row + track * height, height * 0.92)
            axes.broken_barh(bars, place, facecolors=colour, edgecolor="white", linewidth=0.4)
