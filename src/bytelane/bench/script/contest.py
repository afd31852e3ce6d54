"""Run a script under DDP and Bytelane in turns, and collect the results."""

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bytelane.bench.cell import Cell
from bytelane.bench.script.folder import RunFolder
from bytelane.bench.script.rank_launchers import Place, Running
from bytelane.bench.script.trial import (
    BYTELANE,
    COMMUNICATION,
    DDP,
    LEAST_ITERATIONS,
    WHOLE_GRAPHS,
    Arm,
    Difference,
    Errand,
    Outcome,
    RankReport,
    Trial,
)
from bytelane.bench.script.weights import difference, load_weights
from bytelane.errors import InputError, NotSupported, TrainingError
from bytelane.lifetime import scratch_folder

Progress = Callable[[str], None]
LOOK_S = 0.1
OUR_WORDS = "bytelane: "


class RunFailed(Exception):
    """A run has ended with an error: the arm, the exit code, the output of that rank."""

    def __init__(self, arm: Arm, code: int, out: str, err: str) -> None:
        super().__init__(f"{arm.name}: exit code {code}")
        self.arm = arm
        self.code = code
        self.out = out
        self.err = err

    @property
    def is_the_scripts_own(self) -> bool:
        """Whether the script fails under plain DDP, too."""
        return self.arm == DDP


def run_trial(trial: Trial, place: Place, progress: Progress = lambda line: None) -> Outcome:
    """Run a script under DDP, under Bytelane, and without sending; and send without computing."""
    if not Path(trial.script).is_file():
        raise InputError(f"{trial.script}: there is no such file")
    with scratch_folder() as folder:
        contest = _Contest(trial, place, folder, progress)
        for repetition, arms in enumerate(trial.rounds()):
            for arm in arms:
                contest.run(arm, repetition)
        return contest.outcome()


class _Contest:
    """The runs that were made so far."""

    def __init__(self, trial: Trial, place: Place, folder: Path, progress: Progress) -> None:
        self._trial = trial
        self._place = place
        self._folder = folder
        self._progress = progress
        self._reports: dict[Arm, list[list[RankReport]]] = defaultdict(list)
        self._apart: dict[Arm, list[Difference]] = defaultdict(list)
        self._said = ""

    def run(self, arm: Arm, repetition: int) -> None:
        kind = f"{arm.way}-{arm.bucket_bytes}-{arm.whole_graphs}"
        folder = RunFolder(self._folder / f"{kind}-{repetition}")
        folder.give(Errand(self._trial, arm, self._first.gradient_bytes if self._reports else 0))
        title = f"{arm.name}, {repetition + 1} of {self._trial.repetitions}"
        code = self._wait(self._place.start(folder.path), folder, title)
        reports = folder.reports()
        if code or not reports:
            raise self._failure(arm, code, folder, reports)
        self._reports[arm].append(reports)
        if arm != COMMUNICATION:
            self._require_training(reports[0], title)
        if arm == BYTELANE:
            self._said = folder.said(0)[0]
        self._compare(arm, folder)
        if self._rival == WHOLE_GRAPHS and WHOLE_GRAPHS not in self._reports:
            self.run(WHOLE_GRAPHS, repetition)

    def _wait(self, run: Running, folder: RunFolder, title: str) -> int:
        """Wait for the end of a run; raise if it makes no step for the timeout."""
        steps, since = 0, time.monotonic()
        try:
            while run.exit_code is None:
                now, before = time.monotonic(), steps
                steps = folder.steps()
                if steps > before:
                    since = now
                if now - since > self._trial.timeout_s:
                    raise TrainingError(
                        f"{self._trial.script} made no step for {self._trial.timeout_s:g} s "
                        f"({title}, after {steps} steps): it hangs, or needs a longer timeout"
                    )
                self._progress(f"{title}: step {steps}" if steps else title)
                time.sleep(LOOK_S)
        finally:
            if run.exit_code is None:
                run.stop()
        return run.exit_code or 0

    def _failure(
        self, arm: Arm, code: int, folder: RunFolder, reports: list[RankReport]
    ) -> Exception:
        failed = next((report for report in reports if report.code), None)
        if not code:
            return InputError(
                f"{self._trial.script} exited without a report (by os._exit?), so nothing is known "
                "of its training"
            )
        if failed is None:  # killed before it could write one
            return RunFailed(arm, code, *folder.said(0))
        if failed.refused:
            return NotSupported(
                f"Bytelane cannot train {self._trial.script} so far: {failed.refused}"
            )
        return RunFailed(arm, failed.code, *folder.said(failed.rank))

    @property
    def _first(self) -> RankReport:
        """The report of the first run, which shows what the script trains."""
        return self._reports[DDP][0][0]

    @property
    def _rival(self) -> Arm:
        """The arm of DDP that runs the same kernels as Bytelane: splitting graphs changes them."""
        return WHOLE_GRAPHS if self._first.splits_graphs else DDP

    def _require_training(self, report: RankReport, title: str) -> None:
        script = self._trial.script
        if not report.wrapped:
            raise InputError(
                f"{script} never wrapped a model in DistributedDataParallel, so there is nothing "
                "to compare (models are followed in the processes that torchrun would start)"
            )
        if report.steps < LEAST_ITERATIONS:
            first = report is self._first
            advice = "let it train longer" if first else "does it go on from its own checkpoint?"
            raise InputError(
                f"{script} ended after {report.steps} steps of its optimizer ({title}), but at "
                f"least {LEAST_ITERATIONS} are needed; {advice}"
            )

    def _compare(self, arm: Arm, folder: RunFolder) -> None:
        """Compare the weights with those of the first run of this arm, or of Bytelane's rival."""
        reference = self._folder / f"{(self._rival if arm == BYTELANE else arm).name}.pt"
        if folder.weights.exists() and arm in (DDP, WHOLE_GRAPHS, BYTELANE):
            if reference.exists():
                found = difference(load_weights(reference), load_weights(folder.weights))
                self._apart[arm].append(found)
            else:
                folder.weights.rename(reference)
        folder.weights.unlink(missing_ok=True)

    def outcome(self) -> Outcome:
        """Return the outcome of all runs."""
        not_compared = self._why_not_compared()
        return Outcome(
            self._trial,
            self._first.world,
            tuple(self._cell(arm) for arm in self._trial.arms),
            self._first.steps,
            self._first.gradient_bytes,
            self._first.wrapped,
            None if not_compared else _worst(self._apart[BYTELANE]),
            not_compared,
            None if not_compared else _worst(self._apart[DDP]),
            self._agree(BYTELANE) or not self._agree(DDP),
            _statements(self._said),
            self._rival,
            not any(ranks[0].has_gates_in_graphs for ranks in self._reports[BYTELANE]),
        )

    def _why_not_compared(self) -> str:
        compared = {DDP, BYTELANE, self._rival}
        steps = {ranks[0].steps for arm in compared for ranks in self._reports[arm]}
        if len(steps) > 1:
            return f"the runs made {min(steps)} to {max(steps)} steps"
        if any(ranks[0].splits_graphs for ranks in self._reports[WHOLE_GRAPHS]):
            return "the script itself sets torch._dynamo.config.optimize_ddp"
        return "" if self._apart[BYTELANE] else "rank 0 was on another machine"

    def _agree(self, arm: Arm) -> bool:
        """Tell whether the ranks on this machine ended with the same parameters in every run."""
        return all(len({report.digest for report in ranks}) == 1 for ranks in self._reports[arm])

    def _cell(self, arm: Arm) -> Cell[Arm]:
        slowest = (max((r.times_s for r in ranks), key=median) for ranks in self._reports[arm])
        return Cell(arm, tuple(slowest))


def _statements(text: str) -> tuple[str, ...]:
    """Return Bytelane's lines of an output, except headings of a block of figures."""
    lines = text.splitlines()
    return tuple(
        line
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith(OUR_WORDS) and not following.startswith(" ")
    )


def _worst(found: list[Difference]) -> Difference | None:
    return max(found, key=lambda one: one.largest, default=None)
