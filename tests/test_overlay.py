"""Predicted and real, from the command line to the picture, on real processes."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bytelane.bench import Contender, Experiment, run_experiment
from bytelane.bench.emulate import EmulatedModel, expected_weight, gradient_shift
from bytelane.cli.main import app
from bytelane.cluster import Link
from bytelane.core import Knobs
from bytelane.errors import InputError, TrainingError
from bytelane.job import Job, Layer, Tensor, save
from bytelane.measure import measure_link
from ranks import Pool

SMALL = Job(
    "small",
    tuple(Layer(f"l{i}", 2e-3, 4e-3) for i in range(4)),
    (
        Tensor("embedding", 40_000, (0, 3)),
        Tensor("l1.a", 20_000, (1,)),
        Tensor("l1.b", 400, (1,)),
        Tensor("l3", 200_000, (3,)),
    ),
)


def experiment(**changes: object) -> Experiment:
    values = {
        "job": SMALL,
        "workers": 2,
        "rate": 2e7,
        "contenders": (Contender("bytescheduler", Knobs(65536, 131072)),),
        "iterations": 4,
    }
    return Experiment(**(values | changes))  # type: ignore[arg-type]


def test_the_command_writes_picture_trace_and_numbers(tmp_path: Path) -> None:
    save(SMALL, tmp_path / "small.toml")
    command = ["overlay", str(tmp_path / "small.toml"), "--bandwidth", "160Mbit", "--json"]
    command += ["--partition", "64KiB", "--iterations", "4", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    runs = json.loads(done.stdout)["runs"]
    assert [run["policy"] for run in runs] == ["fifo", "bytescheduler"]
    for run in runs:
        assert run["weights_exact"]
        assert run["predicted_ms"] >= run["bound_ms"] > 0
        assert run["error_percent"] == pytest.approx(
            100 * (run["real_ms"] / run["predicted_ms"] - 1)
        )
    assert (tmp_path / "out/overlay.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out/overlay.svg").read_text()
    events = json.loads((tmp_path / "out/overlay.json").read_text())["traceEvents"]
    shown = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert shown == {f"{p}, {w}" for p in ("fifo", "bytescheduler") for w in ("predicted", "real")}


def test_both_traces_show_the_same_operations() -> None:
    (outcome,) = run_experiment(experiment(), timeout_s=60)
    predicted, real = (
        sorted((s.name, s.bytes) for s in trace.spans if s.kind == "transfer" and s.iteration == k)
        for trace, k in (
            (outcome.predicted, 1),
            (outcome.real, min(outcome.real.iteration_start_s)),
        )
    )
    assert predicted == real
    assert outcome.weights_exact


def test_a_rank_that_fails_ends_the_run_with_its_last_words() -> None:
    with pytest.raises(TrainingError, match=r"rank \d failed: .*0.5 bytes per second"):
        run_experiment(experiment(rate=0.5), timeout_s=60)


def test_ranks_that_take_too_long_are_ended() -> None:
    with pytest.raises(TrainingError, match="did not finish in time"):
        run_experiment(experiment(), timeout_s=0.5)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"workers": 3}, "3 workers: an exact check needs one of 2, 4, 8"),
        ({"iterations": 2}, "2 iterations are too few"),
        ({"job": Job("j", SMALL.layers, (Tensor("odd", 7, (0,)),))}, "7 bytes are not whole"),
    ],
)
def test_impossible_experiments_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        experiment(**changes)


@pytest.mark.parametrize("policy", ["nonsense", "dear", "optimal"])
def test_a_policy_that_cannot_run_is_refused_before_ranks_start(policy: str) -> None:
    with pytest.raises(InputError, match=policy):
        Contender(policy, Knobs())


def test_emulated_gradients_differ_by_rank_tensor_position_and_iteration() -> None:
    def gradient(rank: int, tensor: int, iteration: int) -> torch.Tensor:
        model = EmulatedModel(SMALL, rank)
        model.iteration = iteration
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        found = model.weights[tensor].grad
        assert found is not None
        return found[:100]

    base = gradient(0, 0, 0)
    assert len(set(base.tolist())) == 100
    for other in (gradient(1, 0, 0), gradient(0, 1, 0), gradient(0, 0, 1)):
        assert not torch.equal(base, other)


def test_the_expected_weight_is_plain_sgd_by_hand() -> None:
    patterns = torch.arange(5, dtype=torch.float32) + 31
    weight = torch.zeros(5)
    for iteration in range(3):
        weight -= sum(patterns + gradient_shift(rank, 1, iteration) for rank in range(2)) / 2
    assert torch.equal(weight, expected_weight(1, 5, world=2, iterations=3))


def measured(rank: int) -> Link:
    import torch.distributed as dist

    group = dist.new_group(backend="gloo")
    return measure_link(group)[0]


def test_every_rank_can_measure_its_link(two_ranks: Pool) -> None:
    for link in two_ranks.run(measured):
        assert link.rate > 0
