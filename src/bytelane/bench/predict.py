"""Simulate a contender, with the job and the link as measured in this run."""

from statistics import median

from bytelane.bench.cell import Overlay
from bytelane.bench.scale import scale_compute
from bytelane.bench.trainers import OurTrainer
from bytelane.cluster import Cluster
from bytelane.core import CreditWindow, Operation, Plan, SubTask
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim import Simulation, simulate


def predict_ours(trainer: OurTrainer, cluster: Cluster) -> Simulation:
    """Simulate the job as measured during the warm-up, with the trainer's schedule."""
    job = trainer.session.job
    if job is None:
        raise InputError("the job was not measured, so there is no prediction")
    return simulate(job, cluster, trainer.schedule(cluster), "interpreted")


def predict_ddp_s(job: Job, compute_s: float, bucket_bytes: int, cluster: Cluster) -> float:
    """Simulate DDP's buckets, with the computing time that was measured alone."""
    measured = scale_compute(job, compute_s)
    return simulate(measured, cluster, ddp_plan(job, bucket_bytes), "interpreted").iteration_s


def ddp_plan(job: Job, bucket_bytes: int) -> Plan:
    """Bucket as DDP does once it has seen an iteration: in ready order, closed when full."""
    buckets: list[list[SubTask]] = []
    room = 0
    for tensor in sorted(range(len(job.tensors)), key=lambda t: -job.tensors[t].complete_after):
        size = job.tensors[tensor].bytes
        if room <= 0:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(SubTask(tensor, 0, size))
        room -= size
    sizes = tuple(tensor.bytes for tensor in job.tensors)
    operations = tuple(Operation(tuple(bucket)) for bucket in buckets)
    return Plan("ddp", sizes, operations, CreditWindow(), barrier=True)


def lay_over(trainer: OurTrainer, predicted: Simulation, iterations: int) -> Overlay:
    """Return the prediction and a typical one of the first counted iterations."""
    trace = trainer.session.profiler.trace("rank 0")
    first = trainer.warm_up_iterations + 1
    counted = range(first, first + iterations)
    times = {k: seconds for k in counted if (seconds := trace.iteration_s(k)) is not None}
    middle = median(times.values())
    typical = min(times, key=lambda k: abs(times[k] - middle))
    return Overlay(
        predicted=predicted.trace.from_iteration(1, count=2),
        real=trace.from_iteration(typical, count=2),
    )
