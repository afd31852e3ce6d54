"""Run one rank of a benchmark in a lab: ``python -m bytelane.bench.rank FOLDER``."""

import functools
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from bytelane.bench.cell import Cell
from bytelane.bench.contender import (
    AUTO,
    CommunicationOnly,
    ComputeOnly,
    Contender,
    Ddp,
    Ours,
    far_behind,
    with_pieces_of_auto,
)
from bytelane.bench.experiment import (
    ALL_ARE_WARM,
    LINKS_HAVE_DROPPED,
    Experiment,
    Result,
)
from bytelane.bench.links import Links
from bytelane.bench.predict import lay_over, predict_ddp_s, predict_ours
from bytelane.bench.scale import scale_compute
from bytelane.bench.trainers import (
    TIMEOUT_S,
    CommunicationTrainer,
    OurTrainer,
    Trainer,
    make_trainer,
    our_groups,
)
from bytelane.bench.workload import Emulated, Real, Workload, measure_job
from bytelane.cluster import Cluster
from bytelane.core import Knobs
from bytelane.errors import TrainingError
from bytelane.job import Job
from bytelane.runtime.torch.agreement import bytes_from
from bytelane.runtime.torch.control import GlooControl
from bytelane.sim import make_planner

MUTATED_ITERATIONS = 3
MUTATED_KNOBS = Knobs(partition_bytes=2**20, credit_bytes=2**21)


def main(folder: Path) -> None:
    """Run the experiment; rank 0 writes the result."""
    experiment = msgspec.json.decode((folder / "experiment.json").read_bytes(), type=Experiment)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = run(experiment, folder)
    if dist.get_rank() == 0:
        (folder / "result.json").write_bytes(msgspec.json.encode(result))
    dist.barrier()
    dist.destroy_process_group()


def run(experiment: Experiment, folder: Path) -> Result:
    """Measure the network, then every contender in turn, so that a disturbance hits them all."""
    links = Links.measured(experiment.contenders)
    what = experiment.what
    job = what if isinstance(what, Job) else _measured(what)
    _say("communication only: warming up")
    communication = CommunicationTrainer(job.total_bytes)
    communication.warm_up()
    if experiment.ratio is not None:
        job = scale_compute(job, experiment.ratio * _slowest(median(communication.repeat(3))))
    contest = _Contest(experiment, job, links, communication)
    for contender in experiment.contenders:
        contest.enter(contender)
    if experiment.drop:
        _let_links_drop(folder)
    for repetition in range(experiment.repetitions):
        contest.run_all(repetition)
    cells = tuple(contest.cell(contender) for contender in experiment.contenders)
    mutant = _workload(experiment, scale_compute(job, 1e-3))
    found = _finds_a_mutation(mutant)
    return Result(job, experiment.workers, links.plain, links.ours, cells, found)


class _Contest:
    """The contenders that can run here, and their times."""

    def __init__(
        self, experiment: Experiment, job: Job, links: Links, communication: CommunicationTrainer
    ) -> None:
        self._experiment = experiment
        self._job = job
        self._links = links
        self._communication = communication
        self._trainers: dict[Contender, Trainer] = {}
        self._times: dict[Contender, list[tuple[float, ...]]] = {}
        self._failures: dict[Contender, str] = {}
        self._far_behind: frozenset[Contender] = frozenset()

    def enter(self, contender: Contender) -> None:
        _say(f"{contender.name}: warming up")
        try:
            trainer = self._warm(contender)
        except Exception as error:
            if isinstance(contender, Ours):
                raise  # our own failure ends the run; a rival that cannot run here does not
            self._failures[contender] = f"{type(error).__name__}: {error}".partition("\n")[0]
        else:
            self._trainers[contender] = trainer
            self._times[contender] = []

    def _warm(self, contender: Contender) -> Trainer:
        auto = self._trainers.get(Ours(AUTO, None))
        if isinstance(auto, OurTrainer):
            contender = with_pieces_of_auto(contender, auto.knobs)
        if isinstance(contender, CommunicationOnly):
            return self._communication
        workload = _workload(self._experiment, self._job)
        keep = (self._experiment.iterations + 1) * self._experiment.repetitions
        trainer = make_trainer(contender, workload, self._links.of(contender), keep)
        trainer.warm_up()
        return trainer

    def run_all(self, repetition: int) -> None:
        """Measure each contender once; one that is far behind runs in the first repetition only."""
        for contender, trainer in self._trainers.items():
            if contender not in self._far_behind:
                _say(f"{contender.name}: {repetition + 1}/{self._experiment.repetitions}")
                dist.barrier()
                times = trainer.repeat(self._experiment.iterations)
                self._times[contender].append(_of_the_slowest(times))
        if repetition == 0:
            # The fastest iteration: a disturbance must not exclude a contender.
            fastest_s = {c: min(times[0]) for c, times in self._times.items()}
            self._far_behind = far_behind(fastest_s)

    def cell(self, contender: Contender) -> Cell[Contender]:
        if contender in self._failures:
            return Cell(contender, failure=self._failures[contender])
        trainer = self._trainers[contender]
        cell = Cell(contender, tuple(self._times[contender]), exact=_everywhere(trainer.is_exact()))
        link = self._links.of(contender)
        dropped = msgspec.structs.replace(link, rate=link.rate * (1 - self._experiment.drop))
        cluster = Cluster.star(self._experiment.workers, dropped)
        if isinstance(trainer, OurTrainer):
            found = predict_ours(trainer, cluster)
            return msgspec.structs.replace(
                cell,
                predicted_s=found.iteration_s,
                knobs=trainer.knobs,
                overlay=lay_over(trainer, found, self._experiment.iterations),
            )
        if isinstance(contender, Ddp) and ComputeOnly() in self._times:
            compute_s = median(map(median, self._times[ComputeOnly()]))
            found_s = predict_ddp_s(self._job, compute_s, contender.bucket_bytes, cluster)
            return msgspec.structs.replace(cell, predicted_s=found_s)
        return cell


def _let_links_drop(folder: Path) -> None:
    """Ask the process that owns the lab for slower links, and wait for them."""
    _say(ALL_ARE_WARM)
    deadline = time.monotonic() + TIMEOUT_S
    while not (folder / LINKS_HAVE_DROPPED).exists():
        if time.monotonic() > deadline:
            raise TrainingError(f"the links did not drop within {TIMEOUT_S:g} s")
        time.sleep(0.05)
    dist.barrier()


def _workload(experiment: Experiment, job: Job) -> Workload:
    if isinstance(experiment.what, str):
        return Real(experiment.what, job)
    return Emulated(job, experiment.conditions)


def _measured(model: str) -> Job:
    """Let rank 0 profile the model, since all ranks must plan for the same job."""
    _say("profiling the model")
    mine = msgspec.json.encode(measure_job(model))
    groups = our_groups()
    control = GlooControl(groups, TIMEOUT_S)
    return msgspec.json.decode(bytes_from(0, mine, control), type=Job)


def _finds_a_mutation(workload: Workload) -> bool:
    """Shift one piece by one element, and return whether the check of the weights notices."""
    _say("proving that the check can fail")
    planner = make_planner("units", MUTATED_KNOBS)
    trainer = OurTrainer(workload, planner, MUTATED_ITERATIONS)
    trainer.warm_up()
    transport: Any = trainer.session.sync.rounds.transport
    forget = transport.forget

    def misplace(tensor: int) -> None:
        memory = transport.memory[tensor]
        if tensor == 0 and memory is not None:
            memory.copy_(memory.roll(1))
        forget(tensor)

    transport.forget = misplace
    trainer.repeat(MUTATED_ITERATIONS)
    return not _everywhere(trainer.is_exact())


def _of_the_slowest(times_s: tuple[float, ...]) -> tuple[float, ...]:
    """Return the times of the slowest rank: a rank that only computes waits for no other."""
    mine = torch.tensor(times_s, dtype=torch.float64)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)  # not all_gather_object, which pickles
    return max((tuple(one.tolist()) for one in everyone), key=median)


def _slowest(seconds: float) -> float:
    """Return the time of the slowest rank."""
    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def _everywhere(exact: bool | None) -> bool | None:
    """Return True only if the weights are exact on every rank."""
    if exact is None:
        return None
    verdict = torch.tensor(int(exact))
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    return bool(verdict)


_say = functools.partial(print, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
