"""What the experiments found, as assertions; their figures stand in docs/papers.md."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module", autouse=True)
def _leave_the_path_as_it_was() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def experiment(name: str) -> Any:
    """Import a run.py by its path: the folders have dashes."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / name / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    assert isinstance(module, ModuleType)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("run", sorted(FOLDER.glob("*/run.py")), ids=lambda run: run.parent.name)
def test_every_experiment_can_be_imported_and_is_listed(run: Path) -> None:
    assert callable(experiment(run.parent.name).main)
    assert f"experiments/{run.parent.name}/run.py" in (FOLDER / "README.md").read_text()


def test_figure_4_7_has_the_noted_integers_and_one_line_from_2_gigabits_on() -> None:
    run = experiment("thesis-figure-4-7")
    rows = run.iteration_times()
    slow = rows[0]
    assert [int(slow[f"{cell} (ms)"]) for cell in (run.FIFO, run.PRIORITY)] == [1099, 971]
    assert run.saved_percent(slow) == pytest.approx(11.6, abs=0.05)
    assert run.equal_from(rows) == 2
    assert run.equal_from(run.iteration_times(run.BETWEEN)) == pytest.approx(1.2)
    for row in rows:
        cells = [row[f"{cell} (ms)"] for cell in run.CELLS]
        assert min(cells) >= row["optimum (ms)"] >= row["computing (ms)"]
        alone = [row["FIFO, no barrier (ms)"], row["priority, barrier (ms)"]]
        assert alone == pytest.approx([row[f"{run.FIFO} (ms)"]] * 2)


def test_with_a_hundred_layers_figure_4_7_has_other_integers_but_the_same_12_percent() -> None:
    run = experiment("thesis-figure-4-7")
    (row,) = run.iteration_times((1.0,), layers=100)
    assert [int(row[f"{cell} (ms)"]) for cell in (run.FIFO, run.PRIORITY)] == [1095, 967]
    assert round(run.saved_percent(row)) == 12


def test_the_timelines_wait_for_the_link_at_1_gigabit_and_never_at_5() -> None:
    run = experiment("thesis-figures-4-8-to-4-11")
    for cell in (run.FIFO, run.PRIORITY):
        slow, fast = (run.transfers(run.simulate_thesis(rate, cell)) for rate in (1, 5))
        assert len(slow) == len(fast) == 18
        assert max(t.start_s - t.ready_s for t in slow) > 0.2
        assert max(t.start_s - t.ready_s for t in fast) == pytest.approx(0, abs=1e-9)
        # The lowest group is ready when it is needed, so it alone is late, at any rate.
        assert [t.group for t in fast if t.end_s > t.needed_s] == [0]


def test_a_credit_of_one_lets_p4_through_first_and_of_two_fills_the_link() -> None:
    run = experiment("bytescheduler-credit")
    assert run.order(1) == ["P1", "P4", "P3", "P2"]
    assert run.order(2) == ["P1", "P2", "P4", "P3"]
    one, two = run.drive(1), run.drive(2)
    assert two[-1].end_s == 4 * run.SEND_S < one[-1].end_s
    assert [s.known_s for s in one if s.name == "P4"] < [s.known_s for s in two if s.name == "P4"]


def test_tic_and_tac_give_the_lectures_orders_and_no_order_beats_tacs() -> None:
    run = experiment("tictac-lecture")
    assert run.tic_groups() == "A B=C D"
    assert run.tac_sequence() == "A C B D"
    rows = run.all_orders()
    assert len(rows) == 24
    assert rows[0] == {"order": "A C B D", "forward ends (s)": 9.0}


def test_nothing_is_faster_than_the_optimum_and_gains_stay_below_the_ceilings() -> None:
    run = experiment("bytescheduler-bandwidth")
    cells = run.over_bandwidth(("resnet50", "transformer-base"), (1, 10))
    for found in cells.values():
        assert max(found[name] for name in run.POLICIES) == found["optimal"] <= found["linear"]
        assert found["tuned"] >= found["bytescheduler"]
        assert 0 < run.gain_percent(found["tuned"], found["fifo"]) < 100
        # The optimum pays nothing for a message, so it is no rival on this link.
        assert run.gain_percent(found["tuned"], found["sequential"]) < 200


def test_over_a_fifo_that_overlaps_no_schedule_gains_the_published_196_percent() -> None:
    run = experiment("bytescheduler-bandwidth")
    job = run.make_job("vgg16")
    rates = (1.0, 10.0, 14.0, 16.0, 18.0, 25.0)
    over_fifo, _ = run.most_over("fifo", job, rates)
    over_nothing, rate = run.most_over("sequential", job, rates)
    assert 100 < over_fifo < 110
    assert over_fifo < run.PUBLISHED_PERCENT
    assert over_nothing <= run.ceiling_percent(job, rate) <= 200


def test_with_a_server_for_each_worker_speed_is_in_proportion_under_every_policy() -> None:
    run = experiment("bytescheduler-scaling")
    cells = run.scaling(("resnet50",), (8, 64))
    for name, speed in cells["resnet50", 8].items():
        assert cells["resnet50", 64][name] == pytest.approx(8 * speed)


def test_partition_and_credit_have_a_good_middle() -> None:
    run = experiment("autobyte-figures-1-to-3")
    good, bad = (row["ours (x)"] for row in run.figure_1())
    assert (good, bad) == pytest.approx((18 / 14, 18 / 15))
    wait, best, too_many = (row["ours (x)"] for row in run.figure_2())
    assert 1 < wait < best > too_many > 1
    parts = (64 << 10, 2 << 20, 64 << 20)
    found = run.grid("resnet50", 10.0, parts, (1, 2, 16))
    assert run.best(found) == (2 << 20, 2)


def incast_rows() -> list[dict[str, Any]]:
    run = experiment("ps-incast-vs-ring")
    rows: list[dict[str, Any]] = run.compare(run.zoo.make("resnet50"), (2, 8, 64))
    return rows


def test_few_servers_congest_and_a_ring_does_not() -> None:
    rows = incast_rows()
    sent = {(r["arrangement"], r["workers"]): r["busiest link, each way (MB)"] for r in rows}
    assert sent["1 server", 64] == pytest.approx(8 * sent["1 server", 8])
    assert sent["ring", 64] < 2 * 102.3
    assert sent["a server beside each worker", 64] == pytest.approx(sent["ring", 64])
    for row in rows:
        assert row["iteration (ms)"] >= row["least possible (ms)"]


def test_a_host_with_worker_and_server_is_as_fast_as_a_ring_without_its_steps() -> None:
    times = {(r["arrangement"], r["workers"]): r["iteration (ms)"] for r in incast_rows()}
    # Of two workers, each sends a push and a reply, or makes a ring of two steps.
    assert times["a server beside each worker", 2] == pytest.approx(times["ring", 2])
    for workers in (8, 64):
        assert times["a server beside each worker", workers] < times["ring", workers]
