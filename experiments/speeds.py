"""Training speed under a parameter server, policy by policy: what two of the experiments share.

There are as many servers as workers, on hosts of their own, and every host has a duplex link. (With
a server on each worker's host, its replies would share the link with the worker's pushes; the
simulator does not count that, see docs/papers.md.) Times are the zoo's estimates for a V100 and 32
samples a worker, so only shapes and ratios mean something.
"""

from collections.abc import Mapping, Sequence

from common import predict

from bytelane.cluster import Cluster, Link
from bytelane.job import Job, zoo

MODELS = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "transformer-base": "Transformer"}
BATCH = 32
# Assumed; the lecture names none. About what one RDMA message costs.
OVERHEAD_S, LATENCY_S = 20e-6, 50e-6
# What "tuned" may choose from: partition (bytes), and credit in parts.
CHOICES = [(part << 10, credit) for part in (256, 1024, 4096, 16384) for credit in (2, 4, 8)]
POLICIES = ("sequential", "fifo", "p3", "bytescheduler", "tuned", "optimal")

Speeds = Mapping[str, float]


def make_cluster(workers: int, gigabits: float, *, ideal: bool = False) -> Cluster:
    """As many servers as workers, on their own hosts; an ideal link costs nothing but bytes."""
    costs = (0.0, 0.0) if ideal else (OVERHEAD_S, LATENCY_S)
    return Cluster(workers, Link(gigabits * 1e9 / 8, *costs), servers=workers, colocated=False)


def speeds(job: Job, workers: int, gigabits: float) -> Speeds:
    """Return samples a second of all workers together, by policy, and what linear scaling is."""
    cluster = make_cluster(workers, gigabits)
    seconds = {
        name: predict(job, cluster, name).iteration_s for name in POLICIES if name != "tuned"
    }
    seconds["tuned"] = min(
        predict(job, cluster, "bytescheduler", part, credit * part).iteration_s
        for part, credit in CHOICES
    )
    seconds["linear"] = job.compute_s
    return {name: workers * BATCH / seconds[name] for name in (*POLICIES, "linear")}


def make_job(model: str) -> Job:
    return zoo.make(model, accelerator="v100", batch=BATCH)


def gain_percent(better: float, worse: float) -> float:
    return 100 * (better / worse - 1)


def largest_gain(cells: Sequence[tuple[str, Speeds]], of: str, over: str) -> tuple[float, str]:
    """Return the largest gain in speed, in percent, and where it was."""
    return max((gain_percent(found[of], found[over]), where) for where, found in cells)


def ceiling_percent(job: Job, gigabits: float) -> float:
    """Return what removing all waiting can gain over no overlap at all: at most 200 %.

    Without overlap an iteration is computing + push + pull; with all of it, the longest of them.
    """
    way_s = job.total_bytes / (gigabits * 1e9 / 8)
    return gain_percent(job.compute_s + 2 * way_s, max(job.compute_s, way_s))
