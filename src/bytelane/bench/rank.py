"""What one rank of a benchmark does: ``python -m bytelane.bench.rank FOLDER``, in a lab."""

import functools
import sys
from pathlib import Path
from statistics import median

import msgspec
import torch
import torch.distributed as dist

from bytelane.bench.contender import CommunicationOnly, ComputeOnly, Contender, Ours
from bytelane.bench.experiment import Cell, Experiment, Prediction, Result
from bytelane.bench.scale import scale_compute
from bytelane.bench.trainers import (
    TIMEOUT_S,
    CommunicationTrainer,
    OurTrainer,
    Trainer,
    best_knobs,
    make_trainer,
)
from bytelane.bench.workload import Emulated, Real, Workload, measure_job
from bytelane.cluster import Cluster, Link
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.measure import measure_link
from bytelane.runtime.torch.agreement import bytes_from
from bytelane.runtime.torch.control import Control
from bytelane.sim import simulate

MUTATED_ITERATIONS = 3
# Who takes this many times as long as the fastest is not repeated.
FAR_BEHIND = 2.0


def main(folder: Path) -> None:
    """Run the experiment; rank 0 writes what came out."""
    experiment = msgspec.json.decode((folder / "experiment.json").read_bytes(), type=Experiment)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = run(experiment)
    if dist.get_rank() == 0:
        (folder / "result.json").write_bytes(msgspec.json.encode(result))
    dist.barrier()
    dist.destroy_process_group()


def run(experiment: Experiment) -> Result:
    """Measure the network, then every contender in turn, so that a disturbance hits them all."""
    link, _ = measure_link(_group())  # from the slowest rank's times, so the same everywhere
    what = experiment.what
    job = what if isinstance(what, Job) else _measured(what)
    _say("communication only: warming up")
    communication = CommunicationTrainer(job.total_bytes)
    communication.warm_up()
    if experiment.ratio is not None:
        job = scale_compute(job, experiment.ratio * _slowest(communication.repeat(3)))
    contest = _Contest(experiment, job, link, communication)
    for contender in experiment.contenders:
        contest.enter(contender)
    for repetition in range(experiment.repetitions):
        contest.run_all(repetition)
    cells = tuple(contest.cell(contender) for contender in experiment.contenders)
    mutant = _workload(experiment, scale_compute(job, 1e-3))
    return Result(job, experiment.workers, link, cells, _finds_a_mutation(mutant, link))


class _Contest:
    """The contenders that can run here, and their times."""

    def __init__(
        self, experiment: Experiment, job: Job, link: Link, communication: CommunicationTrainer
    ) -> None:
        self._experiment = experiment
        self._job = job
        self._link = link
        self._communication = communication
        self._trainers: dict[Contender, Trainer] = {}
        self._times: dict[Contender, list[tuple[float, ...]]] = {}
        self._failures: dict[Contender, str] = {}
        self._first: dict[Contender, float] = {}
        """How long an iteration took in the first repetition, the same on every rank."""

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
        if isinstance(contender, CommunicationOnly):
            return self._communication
        workload = _workload(self._experiment, self._job)
        keep = (self._experiment.iterations + 2) * self._experiment.repetitions
        trainer = make_trainer(contender, workload, self._link, keep)
        trainer.warm_up()
        return trainer

    def run_all(self, repetition: int) -> None:
        """Let all take their turn; who is far behind does so once, or all would wait for them."""
        for contender, trainer in self._trainers.items():
            if not self._is_far_behind(contender):
                _say(f"{contender.name}: {repetition + 1}/{self._experiment.repetitions}")
                dist.barrier()
                self._times[contender].append(trainer.repeat(self._experiment.iterations))
        if repetition == 0:
            self._first = {c: _slowest(times[0]) for c, times in self._times.items()}

    def _is_far_behind(self, contender: Contender) -> bool:
        trained = [
            seconds
            for rival, seconds in self._first.items()
            if not isinstance(rival, ComputeOnly | CommunicationOnly)
        ]
        return bool(trained) and self._first[contender] > FAR_BEHIND * min(trained)

    def cell(self, contender: Contender) -> Cell:
        if contender in self._failures:
            return Cell(contender, failure=self._failures[contender])
        trainer = self._trainers[contender]
        prediction = None
        if isinstance(trainer, OurTrainer):
            prediction = _predict(trainer, self._experiment, self._link)
        return Cell(
            contender,
            tuple(self._times[contender]),
            _everywhere(trainer.is_exact()),
            prediction,
        )


def _workload(experiment: Experiment, job: Job) -> Workload:
    if isinstance(experiment.what, str):
        return Real(experiment.what, job)
    return Emulated(job, experiment.conditions)


def _measured(model: str) -> Job:
    """Let rank 0 profile the model, since all ranks must plan for the same job."""
    _say("profiling the model")
    mine = msgspec.json.encode(measure_job(model))
    return msgspec.json.decode(bytes_from(0, mine, Control(_group(), TIMEOUT_S)), type=Job)


def _predict(trainer: OurTrainer, experiment: Experiment, link: Link) -> Prediction:
    """Lay what was predicted from the first iterations beside a typical one of the later ones."""
    session = trainer.session
    if session.job is None:
        raise InputError("the job was not measured, so there is no prediction")
    cluster = Cluster(experiment.workers, link)
    found = simulate(session.job, cluster, session.plan, "interpreted")
    trace = session.watch.trace("rank 0")
    first = trainer.warm_up_iterations + 1
    counted = range(first, first + experiment.iterations)
    times = {k: seconds for k in counted if (seconds := trace.iteration_s(k)) is not None}
    middle = median(times.values())
    typical = min(times, key=lambda k: abs(times[k] - middle))
    return Prediction(
        found.iteration_s,
        trainer.knobs,
        predicted=found.trace.from_iteration(1, count=2),
        real=trace.from_iteration(typical, count=2),
    )


def _finds_a_mutation(workload: Workload, link: Link) -> bool:
    """Put one piece one element too far, and see whether the check of the weights notices."""
    _say("proving that the check can fail")
    knobs = best_knobs("bytescheduler", workload.job, Cluster(dist.get_world_size(), link))
    trainer = OurTrainer(workload, "bytescheduler", knobs, MUTATED_ITERATIONS)
    trainer.warm_up()
    transport = trainer.session.transport
    forget = transport.forget

    def misplace(tensor: int) -> None:
        memory = transport.memory[tensor]
        if tensor == 0 and memory is not None:
            memory.copy_(memory.roll(1))
        forget(tensor)

    transport.forget = misplace  # type: ignore[method-assign]
    trainer.repeat(MUTATED_ITERATIONS)
    return not _everywhere(trainer.is_exact())


def _group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group


def _slowest(times_s: tuple[float, ...]) -> float:
    """Return the median, on the rank where it is the longest."""
    value = torch.tensor(median(times_s), dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def _everywhere(exact: bool | None) -> bool | None:
    """Exact only if it is so on every rank."""
    if exact is None:
        return None
    verdict = torch.tensor(int(exact))
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    return bool(verdict)


_say = functools.partial(print, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
