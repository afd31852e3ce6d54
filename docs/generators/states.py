"""Draw the states of an operation from transitions observed in the kernel, each with its call."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, kernel, make_policy, policies_for
from bytelane.core.kernel import State
from bytelane.core.table import policy_state
from bytelane.job import Job, Layer, Tensor

NAMES = {getattr(kernel, name): name for name in ("WAITING", "QUEUED", "STARTED", "FINISHED")}
LINK = Link(8.0)
CLUSTERS = (Cluster.star(2, LINK), Cluster.star(2, LINK, servers=2))
JOB = Job(
    "five tensors",
    tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(4)),
    tuple(Tensor(f"t{i}", 8 * (i + 1), (i % 4,)) for i in range(5)),
)

Transitions = dict[tuple[str, str], set[str]]


def transitions() -> Transitions:
    """Run every policy for two iterations; return the kernel calls that made each transition."""
    seen: Transitions = defaultdict(set)
    for cluster in CLUSTERS:
        for name in policies_for(cluster.sync):
            policy = make_policy(name, JOB, cluster, Knobs(8, 16, 64))
            state = policy_state(policy, JOB)
            random = Random(0)
            for _ in range(2):
                for call, before, after in _iteration(state, random):
                    seen[NAMES[before], NAMES[after]].add(call)
    return dict(seen)


def _iteration(state: State, random: Random) -> Iterator[tuple[str, int, int]]:
    waiting, flying = list(range(len(JOB.tensors))), list[int]()
    while waiting or flying:
        if waiting and (not flying or random.random() < 0.5):
            tensor = waiting.pop(random.randrange(len(waiting)))
            yield from _moves(state, "notify_ready", kernel.notify_ready, tensor)
        else:
            operation = flying.pop(random.randrange(len(flying)))
            yield from _moves(state, "notify_finish", kernel.notify_finish, operation)
        for queue in range(state.counters.shape[0]):
            for call, before, after, operation in _starts(state, queue):
                flying.append(operation)
                yield call, before, after


def _moves(
    state: State, call: str, function: Callable[..., Any], *arguments: int
) -> Iterator[tuple[str, int, int]]:
    """Call the kernel; yield the transitions of all operations that it has moved."""
    statuses = state.status.tolist()
    function(state, *arguments)
    for before, after in zip(statuses, state.status.tolist(), strict=True):
        if before != after:
            yield call, before, after


def _starts(state: State, queue: int) -> Iterator[tuple[str, int, int, int]]:
    """Start the operations that may start, and join those that fit."""
    before = state.status.tolist()
    call, operation, room = "start", kernel.start(state, queue), 0
    while operation != kernel.NOTHING:
        yield call, before[operation], int(state.status[operation]), int(operation)
        full = int(state.counters[queue, kernel.FUSION])
        room = (full if call == "start" else room) - int(state.size[operation])
        call, operation = "join", kernel.join(state, queue, room)
        if operation == kernel.NOTHING:
            call, operation = "start", kernel.start(state, queue)


def draw_states(path: Path) -> None:
    """Draw four boxes in a row, and an arrow for every observed transition."""
    figure = Figure(figsize=(9, 2.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-0.5, 3.5)
    axes.set_ylim(-0.85, 0.55)
    axes.axis("off")
    places = {name: place for place, name in enumerate(NAMES.values())}
    for name, x in places.items():
        box = FancyBboxPatch(
            (x - 0.26, -0.14), 0.52, 0.28, boxstyle="round,pad=0.04", fc="#e8f1f6", ec="#1d6996"
        )
        axes.add_patch(box)
        axes.text(x, 0, name, ha="center", va="center", family="monospace", fontsize=11)
    for (before, after), calls in transitions().items():
        _draw_arrow(axes, places[before], places[after], ", ".join(sorted(calls)))
    figure.savefig(path)


def _draw_arrow(axes: Any, start: int, end: int, label: str) -> None:
    """Draw an arrow to the next state straight, all others as a bow below."""
    style = {"arrowstyle": "-|>", "mutation_scale": 14, "color": "#444444"}
    if end == start + 1:
        axes.add_patch(FancyArrowPatch((start + 0.31, 0), (end - 0.31, 0), **style))
        text = label.replace(", ", ",\n")
        axes.text((start + end) / 2, 0.2, text, ha="center", va="bottom", fontsize=9)
        return
    bow = "arc3,rad=-0.25" if end < start else "arc3,rad=0.25"
    arrow = FancyArrowPatch((start, -0.19), (end, -0.19), connectionstyle=bow, **style)
    axes.add_patch(arrow)
    text = f"next iteration: {label}" if end < start else label
    axes.text((start + end) / 2, -0.72, text, ha="center", va="center", fontsize=9)
