"""Pictures of simulations: what is drawn where, and files that are what their names say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from bytelane.cluster import Cluster, Link
from bytelane.core import Groups, Knobs, make_policy, policies_for
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor
from bytelane.report import draw_bars, draw_timeline, require_picture
from bytelane.report.bars import bars_figure
from bytelane.report.lanes import MOST_ARROWS
from bytelane.report.panel import Panel, rate_over_time, waits
from bytelane.report.style import COLOURS, MARKS
from bytelane.report.timeline import timeline_figure
from bytelane.sim import Simulation, simulate
from bytelane.sim.accounts import accounts, messages
from strategies import jobs

eighths = st.integers(0, 8).map(lambda n: n / 8)
ways = [(s, p) for s in ("allreduce", "ps") for p in policies_for(s) if p != "optimal"]


def three_layers() -> Job:
    """1 s for everything; 2, 2 and 3 s on a link of 8 bytes a second."""
    layers = tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(3))
    return Job("three", layers, tuple(Tensor(f"t{i}", s, (i,)) for i, s in enumerate((16, 16, 24))))


def simulated(job: Job, policy: str = "fifo", sync: str = "allreduce", **link: float) -> Simulation:
    cluster = Cluster.star(2, Link(**({"rate": 8.0} | link)), 2 if sync == "ps" else 0)
    made = make_policy(policy, job, cluster, Knobs(8, 8, 40))
    return simulate(job, cluster, made, "interpreted")


simulations = st.builds(
    lambda job, way, theta, lam: simulated(job, way[1], way[0], overhead_s=theta, latency_s=lam),
    jobs(),
    st.sampled_from(ways),
    eighths,
    eighths,
)


# In numbers


def test_an_iteration_is_shown_with_the_forward_pass_that_uses_its_gradients() -> None:
    panel = Panel.of(simulated(three_layers()), iterations=1)
    shown = [step for step in panel.steps() if step.start_s >= 0 and step.end_s > step.start_s]
    assert [(step.kind, step.start_s) for step in shown] == [
        *(("forward", t) for t in (0, 1, 2)),
        *(("backward", t) for t in (3, 4, 5)),
        *(("forward", t) for t in (11, 12, 13)),
    ]
    assert panel.end_s == 14
    assert waits(panel.steps()) == [(-5, 0), (6, 11)]


def test_the_steady_state_repeats() -> None:
    panel = Panel.of(simulated(three_layers()), iterations=3)
    assert panel.periods_s.tolist() == [-11, 0, 11, 22]
    assert panel.end_s == 36
    assert waits(panel.steps()) == [(-5, 0), (6, 11), (17, 22), (28, 33)]


def test_iterations_that_follow_at_once_have_no_gap_by_rounding() -> None:
    layers = tuple(Layer(f"l{i}", 0.1, 0.3, 0.7) for i in range(3))
    found = simulated(Job("j", layers, (Tensor("t", 8, (2,)),), 0.1), rate=1e9)
    assert waits(Panel.of(found, 20).steps()) == []


def test_tensors_that_travel_together_are_one_block_of_neighbouring_lines() -> None:
    layers = tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(5))
    job = Job("five", layers, tuple(Tensor(f"t{i}", 8, (i,)) for i in (0, 1, 3, 4)))
    made = make_policy("dear", job, Cluster.star(2, Link(8.0)), Knobs(fusion_bytes=16))
    panel = Panel.of(simulate(job, Cluster.star(2, Link(8.0)), made, "interpreted"), 1)
    # Layer 2 has no tensor and no line; groups are filled from the last tensor on.
    blocks = zip(*(column.tolist() for column in panel.blocks()), strict=True)
    assert sorted(blocks) == [(0, 2, 3), (1, 0, 1)]


def test_tensors_that_travel_together_from_apart_are_a_block_each() -> None:
    job, cluster = three_layers(), Cluster.star(2, Link(8.0))
    made = msgspec.structs.replace(make_policy("fifo", job, cluster), cutting=Groups((0, 1, 0)))
    panel = Panel.of(simulate(job, cluster, made, "interpreted"), 1)
    blocks = zip(*(column.tolist() for column in panel.blocks()), strict=True)
    assert list(blocks) == [(0, 0, 0), (0, 2, 2), (1, 1, 1)]


@given(simulations)
def test_every_piece_has_a_place_on_the_line_of_its_layer(found: Simulation) -> None:
    panel = Panel.of(found, 1)
    lines = {layer: line for line, layer in enumerate(panel.slack.layer.tolist())}
    wanted = {
        (operation, lines[found.job.tensors[tensor].needed_by])
        for operation, tensor in zip(
            found.pieces.operation.tolist(), found.pieces.tensor.tolist(), strict=True
        )
    }
    covered = [
        (operation, line)
        for operation, first, last in zip(*(c.tolist() for c in panel.blocks()), strict=True)
        for line in range(first, last + 1)
    ]
    assert sorted(covered) == sorted(wanted)


@given(simulations, st.integers(1, 3))
def test_what_is_not_computed_is_waited(found: Simulation, iterations: int) -> None:
    panel = Panel.of(found, iterations)
    end_s = iterations * panel.one.iteration_s
    idle_s = sum(
        min(end, end_s) - max(start, 0)
        for start, end in waits(panel.steps())
        if end > 0 and start < end_s
    )
    assert idle_s == pytest.approx(iterations * accounts(found).compute.idle_s, abs=1e-9)


@given(simulations)
def test_the_area_under_the_rate_is_the_bytes(found: Simulation) -> None:
    sent = messages(found)
    for sizes in (sent.up_bytes, sent.down_bytes):
        moments, rate = rate_over_time(sent.start_s, sent.end_s, sizes)
        assert (np.diff(moments) * rate[:-1]).sum() == pytest.approx(sizes.sum())
        assert rate.max(initial=0) <= found.cluster.link.rate * (1 + 1e-9)


def test_a_rate_is_zero_between_messages_and_counts_all_that_share_one() -> None:
    starts, ends, sizes = np.array([0.0, 0, 5]), np.array([2.0, 2, 6]), np.array([3.0, 5, 2])
    moments, rate = rate_over_time(starts, ends, sizes)
    assert moments.tolist() == [0, 2, 5, 6]
    assert rate.tolist() == [4, 0, 2, 0]


# In the picture


def boxes(axes: Axes, colour: str) -> list[tuple[float, float, float]]:
    """Return start, end and middle height of the boxes of a colour, in seconds and lines."""
    found = []
    for shape in axes.collections:
        if isinstance(shape, PolyCollection) and to_hex(shape.get_facecolor()[0]) == colour:
            for path in shape.get_paths():
                corners: Any = path.vertices
                (left, low), (right, high) = corners.min(axis=0), corners.max(axis=0)
                found.append((left / 1e3, right / 1e3, (low + high) / 2))
    return sorted(found)


def strokes(axes: Axes, colour: str) -> list[tuple[float, float, float]]:
    """Return start, end and middle height of the strokes of a colour."""
    return sorted(
        (begin[0] / 1e3, end[0] / 1e3, (begin[1] + end[1]) / 2)
        for shape in axes.collections
        if isinstance(shape, LineCollection) and to_hex(shape.get_color()[0]) == colour
        for begin, end in shape.get_segments()
    )


def panels(figure: Figure) -> list[tuple[Axes, Axes]]:
    return [(part.axes[0], part.axes[1]) for part in figure.subfigs]


def test_transfers_marks_and_slack_of_the_case_worked_by_hand() -> None:
    ((axes, _),) = panels(timeline_figure([simulated(three_layers(), "p3")]))

    def now(found: list[tuple[float, float, float]]) -> list[tuple[float, ...]]:
        # Of this iteration; the one before is shown as far as it reaches into it.
        return [pytest.approx(one) for one in found if one[0] >= 4.9]

    assert now(boxes(axes, COLOURS["transfer"])) == [
        (5, 6, 2), (6, 7, 1), (7, 8, 0), (8, 9, 0), (9, 10, 1), (10, 11, 2), (11, 12, 2),
    ]  # fmt: skip
    ready = now(strokes(axes, COLOURS["backward"]))
    assert ready == [(5, 5, 2), (6, 6, 1), (7, 7, 0)]
    assert now(strokes(axes, MARKS["needed"])) == [(7, 7, 0), (10, 10, 1), (11, 11, 2)]
    assert now(strokes(axes, MARKS["waiting"])) == [(7, 9, 0), (11, 12, 2)]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "backward", "forward", "l0", "l1", "l2",
    ]  # fmt: skip


def test_the_title_says_what_is_seen() -> None:
    ((axes, _),) = panels(timeline_figure([simulated(three_layers())]))
    assert axes.get_title(loc="left") == (
        "fifo: 11000.0 ms per iteration; computing waits 5000.0 ms (45%), "
        "the link is idle 4000.0 ms (36%)"
    )


def test_with_a_parameter_server_push_and_pull_share_a_line_and_have_a_direction_each() -> None:
    figure = timeline_figure([simulated(three_layers(), "fifo", "ps", rate=4.0)])
    ((axes, rate),) = panels(figure)
    pushed, pulled = (boxes(axes, c) for c in (COLOURS["transfer"], MARKS["later transfer"]))
    assert (4, 7) in [(round(start, 9), round(end, 9)) for start, end, _ in pushed]
    assert (7, 10) in [(round(start, 9), round(end, 9)) for start, end, _ in pulled]
    assert {round(height - round(height), 2) for _, _, height in pushed} == {-0.19}
    assert {round(height - round(height), 2) for _, _, height in pulled} == {0.19}
    # Four bytes a second are 32 bits a second, up while pushing and down while pulling.
    extents = [shape.get_datalim(rate.transData) for shape in rate.collections]
    assert [round(extent.ymax * 1e9, 6) for extent in extents] == [32, 0]
    assert [round(extent.ymin * 1e9, 6) for extent in extents] == [0, -32]
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= {"push", "pull"}


def test_several_simulations_have_one_time_axis() -> None:
    figure = timeline_figure([simulated(three_layers(), name) for name in ("fifo", "p3")])
    (limits,) = {axes.get_xlim() for panel in panels(figure) for axes in panel}
    assert limits == pytest.approx((0, 1.005 * 14e3))


def many_layers(count: int) -> Job:
    layers = tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(count))
    return Job("many", layers, tuple(Tensor(f"t{i}", 8, (i,)) for i in range(count)))


@pytest.mark.parametrize("count", [1, MOST_ARROWS, MOST_ARROWS + 1, 160, 500])
def test_any_number_of_layers_stays_readable(count: int) -> None:
    figure = timeline_figure([simulated(many_layers(count))])
    ((axes, _),) = panels(figure)
    assert 2 < len(axes.get_yticklabels()) <= 38
    assert figure.get_figheight() < 8
    arrows = [text for text in axes.texts if text.get_text() == ""]
    assert bool(arrows) == (count <= MOST_ARROWS)


def test_long_names_and_formulas_are_shown_as_they_are_written() -> None:
    layers = (Layer("$x$", 1.0, 1.0), Layer("encoder." * 9 + "end", 1.0, 1.0))
    job = Job("$", layers, (Tensor("a", 8, (0,)), Tensor("b", 8, (1,))))
    figure = timeline_figure([simulated(job)])
    figure.draw_without_rendering()
    ((axes, _),) = panels(figure)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[2] == r"\$x\$"
    assert labels[3].endswith("encoder.end")
    assert len(labels[3]) < 40


@settings(max_examples=30)
@given(simulations)
def test_anything_that_can_be_simulated_can_be_drawn(found: Simulation) -> None:
    ((axes, _),) = panels(timeline_figure([found], iterations=2))
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["backward", "forward"]


# Bars


def all_policies(job: Job, sync: str = "allreduce") -> dict[str, Simulation]:
    return {name: simulated(job, name, sync) for name in policies_for(sync)}  # type: ignore[arg-type]


@pytest.mark.parametrize("sync", ["allreduce", "ps"])
def test_bars_are_sorted_and_made_of_computing_and_waiting(sync: str) -> None:
    found = all_policies(three_layers(), sync)
    (axes,) = bars_figure(found).axes
    computing, waiting = axes.containers
    ends = [bar.get_x() + bar.get_width() for bar in waiting]
    assert ends == sorted(ends)
    assert ends == pytest.approx(sorted(1e3 * one.iteration_s for one in found.values()))
    assert {round(bar.get_width(), 6) for bar in computing} == {6000}
    marked = {line.get_label(): line.get_xdata()[0] for line in axes.lines}
    assert marked == {
        "fifo": pytest.approx(1e3 * found["fifo"].iteration_s),
        "the optimum": pytest.approx(1e3 * found["optimal"].iteration_s),
    }
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert sorted(names) == sorted(found)
    texts = [text.get_text() for text in axes.texts]
    assert texts[names.index("fifo") + 1] == f"{1e3 * found['fifo'].iteration_s:.1f} ms"
    assert texts[len(found) + 1 + names.index("fifo") + 1] == "+0.0 %"


# Files

Draw = Callable[[Path], None]


def draw_lines_to(path: Path) -> None:
    draw_timeline([simulated(three_layers())], path)


def draw_bars_to(path: Path) -> None:
    draw_bars(all_policies(three_layers()), path)


@pytest.mark.parametrize("draw", [draw_lines_to, draw_bars_to])
def test_the_ending_says_what_is_written(draw: Draw, tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    draw(tmp_path / "a.SVG")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a.SVG").read_text()


@pytest.mark.parametrize("draw", [draw_lines_to, draw_bars_to])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_same_picture_is_the_same_bytes(draw: Draw, ending: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        draw(tmp_path / f"{name}.{ending}")
    first, second = ((tmp_path / f"{n}.{ending}").read_bytes() for n in ("first", "second"))
    assert first == second


@pytest.mark.parametrize("name", ["a.pdf", "a", "png", "a.png.txt"])
def test_other_endings_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"ends in \.svg or \.png"):
        require_picture(name)


@pytest.mark.parametrize("iterations", [0, -1, 21])
def test_no_iterations_or_too_many_are_refused(iterations: int) -> None:
    with pytest.raises(InputError, match=f"{iterations} iterations cannot be shown; use 1 to 20"):
        timeline_figure([simulated(three_layers())], iterations)


def test_the_optimum_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="not a schedule"):
        timeline_figure([simulated(three_layers(), "optimal")])


def test_thousands_of_pieces_become_an_image_inside_the_svg(tmp_path: Path) -> None:
    layers = (Layer("l", 1.0, 1.0),)
    draw_timeline(
        [simulated(Job("j", layers, (Tensor("t", 40_000, (0,)),)), "p3")], tmp_path / "a.svg"
    )
    assert (tmp_path / "a.svg").stat().st_size < 1_000_000
