"""A script under DDP and under Bytelane: the order of runs, what is compared, what is told."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bytelane.bench import Cell
from bytelane.bench.script import (
    Arm,
    Difference,
    Here,
    Line,
    Outcome,
    RunFailed,
    Trial,
    run_trial,
)
from bytelane.bench.script.folder import RunFolder
from bytelane.bench.script.trial import (
    BYTELANE,
    COMMUNICATION,
    COMPUTE,
    DDP,
    WHOLE_GRAPHS,
    Errand,
    RankReport,
    Wrapped,
)
from bytelane.bench.script.weights import difference, digest_of, save_weights, weights_of
from bytelane.cli import try_output
from bytelane.errors import InputError, NotSupported, TrainingError

# --- what is run, and in which order --------------------------------------------------------------


@given(st.integers(1, 9), st.sets(st.integers(1, 10**9), max_size=4))
def test_everybody_runs_once_a_round_and_ddp_as_it_is_comes_first(
    repetitions: int, buckets: set[int]
) -> None:
    trial = Trial("train.py", repetitions=repetitions, buckets=tuple(buckets))
    rounds = trial.rounds()
    assert len(rounds) == repetitions
    assert rounds[0][0] == DDP
    assert all(sorted(one, key=repr) == sorted(trial.arms, key=repr) for one in rounds)
    assert all(a[-1] == b[0] for a, b in pairwise(rounds))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"iterations": 11}, "11 iterations are too few.*use 12 or more"),
        ({"repetitions": 0}, "0 repetitions are too few"),
        ({"timeout_s": 0.0}, "a timeout of 0 s leaves no time"),
        ({"buckets": (1, 1)}, "named twice"),
        ({"buckets": (0,)}, "a bucket of 0 bytes holds nothing"),
    ],
)
def test_what_cannot_be_tried_is_a_sentence(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        assert Trial("train.py", **changes).arms


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "largest"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), 0.5),
        (torch.tensor([3]), torch.tensor([7]), 4.0),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (torch.tensor([0.0]), torch.tensor([-0.0]), 5e-324),
        (torch.tensor([1.0]), torch.tensor([float("nan")]), float("inf")),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), 0.0),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), float("inf")),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), float("inf")),
        (torch.tensor([1j]), torch.tensor([2j]), 1.0),
        (torch.zeros(0), torch.zeros(0), 0.0),
    ],
)
def test_the_largest_difference_is_found_and_named(
    one: torch.Tensor, other: torch.Tensor, largest: float
) -> None:
    same = torch.ones(2)
    found = difference({"a": same, "b": one}, {"a": same, "b": other})
    assert found == (Difference(largest, "b") if largest else Difference())


def test_a_weight_that_only_one_has_is_infinitely_far_away() -> None:
    assert difference({"a": torch.ones(1)}, {}) == Difference(float("inf"), "a")
    assert difference({}, {}) == Difference()


def test_weights_of_several_models_do_not_collide_and_digests_tell_them_apart() -> None:
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert list(weights_of([one, other])) == ["weight", "bias", "1.weight", "1.bias"]
    assert digest_of([one]) == digest_of([one]) != digest_of([other])


# --- runs, without processes ----------------------------------------------------------------------


class Script:
    """A place where nothing runs: every rank's report is made up."""

    title = "nowhere"

    def __init__(self, tmp_path: Path, world: int = 2) -> None:
        self.path = tmp_path / "train.py"
        self.path.write_text("")
        self.world = world
        self.started: list[Arm] = []
        self.code = 0
        self.stopped = False

    def report(self, errand: Errand, rank: int) -> RankReport:
        wrapped = (Wrapped(Line("train.py", 9, "model = DDP(net)")),)
        seconds = {"ddp": 0.3, "bytelane": 0.2, "compute": 0.19, "communication": 0.1}
        times = (seconds[errand.arm.way] + rank * 0.001,) * 5
        return RankReport(rank, self.world, 0, "", 40, times, wrapped, 400, "abc")

    def weights(self, errand: Errand) -> float:
        return 1.0

    def start(self, folder: Path) -> "Script":
        run = RunFolder(folder)
        errand = run.errand()
        self.started.append(errand.arm)
        for rank in range(self.world):
            run.report(self.report(errand, rank))
        if errand.arm != COMMUNICATION:
            save_weights({"w": torch.tensor([self.weights(errand)])}, run.weights)
        (folder / "rank-0.out").write_text(
            "bytelane: a plan\nloss 3\nbytelane: a page\n  of figures\n"
        )
        (folder / "rank-1.err").write_text("no data\n")
        return self

    @property
    def exit_code(self) -> int | None:
        return self.code

    def stop(self) -> None:
        self.stopped = True

    def try_out(self, **changes: Any) -> Outcome:
        return run_trial(Trial(str(self.path), **changes), self)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_runs_take_turns_and_their_times_are_those_of_the_slowest_rank(script: Script) -> None:
    outcome = script.try_out(repetitions=2)
    assert script.started == [*outcome.trial.arms, *reversed(outcome.trial.arms)]
    assert outcome.seconds(DDP) == pytest.approx(0.301)
    assert outcome.seconds(BYTELANE) == pytest.approx(0.201)
    assert outcome.bound_s == outcome.seconds(COMPUTE)
    assert outcome.speedup == pytest.approx(0.301 / 0.201)
    assert outcome.said == ("bytelane: a plan",)
    assert (outcome.steps, outcome.gradient_bytes, outcome.workers) == (40, 400, 2)


def test_what_is_sent_alone_is_as_much_as_the_gradients(script: Script) -> None:
    told: list[int] = []
    start = script.start

    def listen(folder: Path) -> Script:
        if RunFolder(folder).errand().arm == COMMUNICATION:
            told.append(RunFolder(folder).errand().gradient_bytes)
        return start(folder)

    script.start = listen  # type: ignore[method-assign]
    script.try_out(repetitions=1)
    assert told == [400]


def test_the_best_ddp_is_what_counts(script: Script) -> None:
    def report(errand: Errand, rank: int) -> RankReport:
        made = Script.report(script, errand, rank)
        return msgspec.structs.replace(made, times_s=(0.15,)) if errand.arm == small else made

    small = Arm("ddp", 2**20)
    script.report = report  # type: ignore[method-assign]
    outcome = script.try_out(buckets=(2**20,))
    assert outcome.best_ddp.contender == small
    assert outcome.speedup < 1
    assert "SLOWER than DDP, 1 MiB buckets" in told(outcome)


def test_equal_weights_are_equal_to_the_last_bit(script: Script) -> None:
    outcome = script.try_out()
    assert outcome.weights == outcome.own == Difference()
    assert not outcome.is_wrong
    assert "weights: equal to the last bit after 40 steps" in told(outcome)


@pytest.mark.parametrize(("world", "wrong"), [(2, True), (3, False)])
def test_on_two_workers_other_weights_are_wrong(tmp_path: Path, world: int, wrong: bool) -> None:
    script = Script(tmp_path, world)
    script.weights = lambda errand: 1.0 + 1e-6 * (errand.arm == BYTELANE)  # type: ignore[assignment]
    outcome = script.try_out()
    assert outcome.is_wrong is wrong
    assert outcome.weights is not None
    assert outcome.weights.largest == pytest.approx(1e-6, rel=0.1)
    assert "DDP repeats itself exactly, DDP and Bytelane differ by up to 9.54e-07" in told(outcome)


class Compiled(Script):
    """Splits its graphs under DDP, which rounds differently; perhaps at Bytelane's gates, too."""

    def __init__(self, tmp_path: Path, splitting: Callable[[Arm], bool]) -> None:
        super().__init__(tmp_path)
        self.splitting = splitting

    def report(self, errand: Errand, rank: int) -> RankReport:
        arm = errand.arm
        made = super().report(errand, rank)
        if arm == WHOLE_GRAPHS:  # slower, which must not count
            made = msgspec.structs.replace(made, times_s=(9.0,))
        gates = arm == BYTELANE and self.splitting(arm)
        splits = arm.is_ddp and self.splitting(arm)
        return msgspec.structs.replace(made, splits_graphs=splits, has_gates_in_graphs=gates)

    def weights(self, errand: Errand) -> float:
        return 1.0 + 1e-6 * self.splitting(errand.arm)


def test_compiled_scripts_are_compared_with_a_ddp_that_does_not_split_their_graphs(
    tmp_path: Path,
) -> None:
    script = Compiled(tmp_path, lambda arm: arm == DDP)
    outcome = script.try_out(repetitions=2)
    assert script.started[:2] == [DDP, WHOLE_GRAPHS]
    assert script.started.count(WHOLE_GRAPHS) == 1
    assert outcome.weights == outcome.own == Difference()
    assert not outcome.is_wrong
    assert "weights: equal to the last bit" in told(outcome)
    assert "compared with a run of DDP that leaves compiled graphs whole" in told(outcome)
    assert outcome.best_ddp.contender == DDP
    assert outcome.seconds(DDP) == pytest.approx(0.301)
    assert try_output.document(outcome, Here(2))["weights_compared_with"] == WHOLE_GRAPHS.name


def test_other_weights_of_the_same_kernels_are_wrong(tmp_path: Path) -> None:
    script = Compiled(tmp_path, lambda arm: arm == DDP)
    script.weights = lambda errand: float(errand.arm == BYTELANE)  # type: ignore[assignment]
    assert script.try_out().is_wrong


def test_graphs_that_our_own_gates_split_have_other_kernels(tmp_path: Path) -> None:
    outcome = Compiled(tmp_path, lambda arm: arm in (DDP, BYTELANE)).try_out()
    assert outcome.weights != Difference()
    assert not outcome.is_wrong
    assert "split at Bytelane's hooks" in told(outcome)


def test_a_script_that_insists_on_splitting_is_not_compared(tmp_path: Path) -> None:
    outcome = Compiled(tmp_path, lambda arm: arm.is_ddp).try_out()
    assert "not compared: the script itself sets torch._dynamo.config.optimize_ddp" in told(outcome)


def test_a_script_that_is_not_deterministic_is_said_so_and_nobody_is_blamed(
    script: Script,
) -> None:
    numbers = iter(range(100))
    script.weights = lambda errand: float(next(numbers))  # type: ignore[assignment]
    outcome = script.try_out()
    assert outcome.is_deterministic is False
    assert not outcome.is_wrong
    assert "weights: the script is not deterministic: two runs under DDP differ" in told(outcome)


def test_one_run_does_not_tell_whether_a_script_is_deterministic(script: Script) -> None:
    script.weights = lambda errand: float(errand.arm == BYTELANE)  # type: ignore[assignment]
    outcome = script.try_out(repetitions=1)
    assert outcome.is_deterministic is None
    assert not outcome.is_wrong
    assert "--repetitions 2 tells" in told(outcome)


def test_runs_of_different_lengths_are_not_compared(script: Script) -> None:
    def report(errand: Errand, rank: int) -> RankReport:
        steps = 40 + (errand.arm == BYTELANE)
        return msgspec.structs.replace(Script.report(script, errand, rank), steps=steps)

    script.report = report  # type: ignore[method-assign]
    outcome = script.try_out()
    assert outcome.weights is None
    assert "weights: not compared: the runs made 40 to 41 steps" in told(outcome)


def test_ranks_that_disagree_are_wrong_unless_they_do_so_under_ddp(script: Script) -> None:
    apart = {BYTELANE}

    def report(errand: Errand, rank: int) -> RankReport:
        digest = str(rank) if errand.arm in apart else ""
        return msgspec.structs.replace(Script.report(script, errand, rank), digest=digest)

    script.report = report  # type: ignore[method-assign]
    outcome = script.try_out()
    assert outcome.is_wrong
    assert "the ranks have ended with different parameters" in told(outcome)
    apart.add(DDP)
    assert not script.try_out().is_wrong


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"wrapped": ()}, "train.py never wrapped a model in DistributedDataParallel"),
        ({"steps": 0}, r"ended after 0 steps of its optimizer .DDP, 1 of 3., but at least 12"),
    ],
)
def test_a_script_with_nothing_to_compare_is_a_sentence_after_one_run(
    script: Script, changes: dict[str, Any], complaint: str
) -> None:
    def report(errand: Errand, rank: int) -> RankReport:
        return msgspec.structs.replace(Script.report(script, errand, rank), **changes)

    script.report = report  # type: ignore[method-assign]
    with pytest.raises(InputError, match=complaint):
        script.try_out()
    assert script.started == [DDP]


def test_a_script_that_goes_on_where_the_run_before_has_ended_is_noticed(script: Script) -> None:
    def report(errand: Errand, rank: int) -> RankReport:
        steps = 40 * (errand.arm == DDP)
        return msgspec.structs.replace(Script.report(script, errand, rank), steps=steps)

    script.report = report  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"0 steps .*Bytelane, 1 of 3.*from its own checkpoint"):
        script.try_out()


def test_what_bytelane_refuses_is_its_own_sentence(script: Script) -> None:
    def report(errand: Errand, rank: int) -> RankReport:
        script.code = 2 * (errand.arm == BYTELANE)
        return RankReport(rank, 2, 2, "GPUs are not supported") if script.code else made(errand)

    def made(errand: Errand) -> RankReport:
        return Script.report(script, errand, 0)

    script.report = report  # type: ignore[method-assign]
    with pytest.raises(NotSupported, match=r"cannot train .*train.py so far: GPUs are not supp"):
        script.try_out()


def test_a_failure_is_that_of_the_rank_which_failed(script: Script) -> None:
    def report(errand: Errand, rank: int) -> RankReport:
        script.code = 1
        return RankReport(rank, 2, code=7 * rank)

    script.report = report  # type: ignore[method-assign]
    with pytest.raises(RunFailed) as failure:
        script.try_out()
    assert failure.value.is_the_scripts_own
    assert (failure.value.code, failure.value.out, failure.value.err) == (7, "", "no data\n")


def test_the_rank_that_has_ended_first_is_told_first(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.give(Errand(Trial("train.py"), DDP))
    for at_s, rank in enumerate((2, 0, 1)):
        folder.report(RankReport(rank, 3, code=1))
        os.utime(folder.path / f"rank-{rank}.json", (at_s, at_s))
    assert [report.rank for report in folder.reports()] == [2, 0, 1]


def test_a_run_without_a_step_in_time_is_stopped(script: Script) -> None:
    script.code = None  # type: ignore[assignment]
    with pytest.raises(TrainingError, match=r"no step for 0.3 s \(DDP, 1 of 3, after 0 steps\)"):
        script.try_out(timeout_s=0.3)
    assert script.stopped


def test_steps_earn_patience(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(20))

    def count(folder: RunFolder) -> int:
        script.code = 0 if (made := next(steps)) > 8 else None  # type: ignore[assignment]
        return made

    monkeypatch.setattr(RunFolder, "steps", count)
    script.code = None  # type: ignore[assignment]
    assert script.try_out(timeout_s=0.5, repetitions=1).steps == 40


# --- what is told ---------------------------------------------------------------------------------


def told(outcome: Outcome) -> str:
    lines = [*try_output._verdict(outcome), *try_output._weights(outcome)]
    return "\n".join(lines)


def outcome_of(**repetitions_s: tuple[float, ...]) -> Outcome:
    cells = tuple(
        Cell(arm, tuple((seconds,) for seconds in repetitions_s[arm.way]))
        for arm in (DDP, BYTELANE, COMPUTE, COMMUNICATION)
    )
    count = len(repetitions_s["ddp"])
    line = Line("train.py", 9, "model = DDP(net)")
    trial = Trial("train.py", repetitions=count)
    wrapped = (Wrapped(line),)
    return Outcome(trial, 2, cells, 40, 10**6, wrapped, Difference(), "", Difference(), True)


def test_a_difference_within_the_noise_is_said_so() -> None:
    clear = outcome_of(ddp=(3.0, 3.01), bytelane=(2.0, 2.01), compute=(1, 1), communication=(1, 1))
    assert "Bytelane is 1.50x faster than DDP; at the bound it would be 3.0" in told(clear)
    assert "noise" not in told(clear)
    assert "not quiet" not in told(clear)
    assert "cannot be" not in told(clear)
    unclear = outcome_of(ddp=(3.0, 2.0), bytelane=(2.5, 2.1), compute=(1, 1), communication=(1, 1))
    assert not unclear.is_clear
    assert "not clear of the noise" in told(unclear)
    assert "not quiet enough" in told(unclear)


def test_a_bound_above_ddp_is_called_impossible() -> None:
    outcome = outcome_of(ddp=(0.1,), bytelane=(0.2,), compute=(0.15,), communication=(0.05,))
    assert "2.00x SLOWER than DDP; at the bound it would be 0.67x" in told(outcome)
    assert "which cannot be: the machine was disturbed" in told(outcome)


def test_the_table_names_the_line_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_of(ddp=(0.3,), bytelane=(0.2,), compute=(0.1,), communication=(0.15,))
    try_output.print_outcome(outcome, Here(2))
    said = capsys.readouterr().out
    assert "DDP                     300 ms             2.00x" in said
    assert "communication alone     150 ms             1.00x" in said
    assert "in train.py, line 9, instead of\n    model = DDP(net)\nwrite" in said
    assert said.endswith("    bytelane.prepare(model, optimizer)\n")


def test_the_picture_is_drawn_in_both_formats(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    times = {"ddp": (0.3, 0.31), "bytelane": (0.2, 0.2), "compute": (0.1, 0.1)}
    try_output.save_pictures(outcome_of(**times, communication=(0.15, 0.15)), Here(2), tmp_path)
    assert (tmp_path / "try.png").stat().st_size > 10_000
    drawn = (tmp_path / "try.svg").read_text()
    assert drawn.count("<path") > 10
