"""Draw the states of a tensor in a round from the table of transitions that the runtime uses."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bytelane.runtime.sync.tensor_states import TRANSITIONS, State

PLACES = {
    State.IDLE: (0.0, 0.0),
    State.LOCAL: (0.0, -1.5),
    State.COLLECTED: (1.8, 0.0),
    State.IN_FLIGHT: (3.6, 0.0),
    State.DISCARDED: (3.6, -1.5),
    State.OWED: (3.6, 1.2),
    State.OWED_AND_DISCARDED: (5.1, 1.2),
    State.SETTLED: (7.2, 0.0),
    State.SETTLED_AND_LOCAL: (7.2, -1.5),
}
BOX = {"boxstyle": "round,pad=0.5", "fc": "#e8f1f6", "ec": "#1d6996"}


def draw_tensor_states(path: Path) -> None:
    """Draw every state as a box and every transition that leads elsewhere as an arrow."""
    missing = set(State) - PLACES.keys()
    assert not missing, f"no place in the picture for {missing}"
    figure = Figure(figsize=(11, 6.2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-1.2, 8.4)
    axes.set_ylim(-2.9, 2.5)
    axes.set_aspect("equal")  # a bow is drawn in inches
    axes.axis("off")
    boxes = {state: _box(axes, state, place) for state, place in PLACES.items()}
    for state, row in TRANSITIONS.items():
        for what, following in row.items():
            if following is not state:
                text = what.name.lower().replace("_", " ")
                _draw_arrow(axes, boxes, state, following, text)
    figure.savefig(path)


def _box(axes: Any, state: State, place: tuple[float, float]) -> Any:
    name = state.name.replace("_AND_", "\nAND ")
    text = axes.text(
        *place, name, ha="center", va="center", family="monospace", fontsize=10, bbox=BOX
    )
    text.figure.canvas.draw()  # so that its box has a size
    return text.get_bbox_patch()


def _draw_arrow(axes: Any, boxes: dict[State, Any], start: State, end: State, label: str) -> None:
    (x0, y0), (x1, y1) = PLACES[start], PLACES[end]
    there_and_back = start in TRANSITIONS[end].values() and start is not end
    ends_the_round = label == "close"
    bend = 0.0
    if ends_the_round:
        bend = 0.58 if y0 == 0 else -0.3
    elif there_and_back:
        bend = 0.6
    axes.annotate(
        "",
        xy=PLACES[end],
        xytext=PLACES[start],
        arrowprops={
            "arrowstyle": "-|>",
            "color": "#444444",
            "connectionstyle": f"arc3,rad={bend}",
            "patchA": boxes[start],
            "patchB": boxes[end],
            "shrinkA": 4,
            "shrinkB": 4,
        },
    )
    # A quadratic curve is half as far from the straight line as its control point.
    middle_x = (x0 + x1) / 2 + bend * (y1 - y0) / 2
    middle_y = (y0 + y1) / 2 - bend * (x1 - x0) / 2
    axes.text(
        middle_x, middle_y, label, ha="center", va="center", fontsize=9, color="#222222",
        bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"},
    )  # fmt: skip
