"""Draw thousands of boxes or strokes fast, as one matplotlib collection."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = npt.NDArray[np.float64]

# In an SVG file more shapes than this are kept as an image.
TOO_MANY = 4000
# A white edge would hide a box that is narrower than this share of the picture, or lower.
NARROW = 0.003
LOW = 0.015


def draw_boxes(
    axes: "Axes", left: Numbers, right: Numbers, low: Numbers, high: Numbers, colour: str
) -> None:
    """Fill boxes; a white edge tells neighbours apart where they are wide enough for one."""
    from matplotlib.collections import PolyCollection

    corners = ((left, low), (right, low), (right, high), (left, high))
    boxes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    begin, end = axes.get_xlim()
    bottom, top = axes.get_ylim()
    small = (right - left < NARROW * (end - begin)) | (high - low < LOW * (bottom - top))
    for some, edge in ((small, colour), (~small, "white")):
        if some.any():
            shape = PolyCollection(
                list(boxes[some]), facecolor=colour, edgecolor=edge, linewidth=0.35, zorder=2
            )
            shape.set_rasterized(some.sum() > TOO_MANY)
            axes.add_collection(shape, autolim=False)


def draw_level(
    axes: "Axes", left: Numbers, right: Numbers, height: Numbers, colour: str, width: float
) -> None:
    """Draw level strokes, below boxes."""
    long = right > left
    begin, end = (left[long], height[long]), (right[long], height[long])
    _draw_strokes(axes, begin, end, colour, width, below=True)


def draw_ticks(
    axes: "Axes", place: Numbers, low: Numbers, high: Numbers, colour: str, width: float
) -> None:
    """Draw upright strokes, above boxes."""
    _draw_strokes(axes, (place, low), (place, high), colour, width, below=False)


Points = tuple[Numbers, Numbers]


def _draw_strokes(
    axes: "Axes", begin: Points, end: Points, colour: str, width: float, below: bool
) -> None:
    from matplotlib.collections import LineCollection

    strokes = np.stack([np.stack(begin, axis=-1), np.stack(end, axis=-1)], axis=1)
    shape = LineCollection(
        list(strokes), colors=colour, linewidths=width, zorder=1 if below else 3, capstyle="butt"
    )
    shape.set_rasterized(len(strokes) > TOO_MANY)
    axes.add_collection(shape, autolim=False)
