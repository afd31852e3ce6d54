"""The books of one steady iteration: how long each resource was busy, and what each link carried.

Bytes are payload: parameters and gradients, without headers or anything that a message costs beside
them. A link's two directions are counted apart.
"""

from typing import NamedTuple

import numpy as np

from bytelane.cluster import Cluster
from bytelane.core import Plan
from bytelane.job import Job
from bytelane.sim.engine import Simulation
from bytelane.sim.layout import Floats
from bytelane.sim.steady import by_stage, simulated_worker, steady


class Use(NamedTuple):
    """How a resource spent an iteration."""

    busy_s: float
    idle_s: float

    @property
    def busy_share(self) -> float:
        total = self.busy_s + self.idle_s
        return self.busy_s / total if total else 0.0


class Accounts(NamedTuple):
    """How one worker spent an iteration.

    A link is busy while a message of this worker occupies it, overhead included; where a server's
    link is slower because others use it too, for as long as that takes.
    """

    compute: Use
    up: Use
    down: Use
    """Of its link; one and the same if workers all-reduce, which uses both directions at once."""


class Traffic(NamedTuple):
    """What the link of each of these hosts carries in an iteration."""

    host: str
    hosts: int
    up_bytes: float
    down_bytes: float


class Messages(NamedTuple):
    """What a worker's link carried for one iteration's gradients: columns, a row an operation.

    Seconds since the forward pass began; operations that travel in one message have the same.
    """

    start_s: Floats
    end_s: Floats
    up_bytes: Floats
    down_bytes: Floats


def accounts(found: Simulation, worker: int = 0) -> Accounts:
    """Tell how long a worker's computing and link were busy in an iteration, and idle."""
    if found.log is None:
        link = _use(found.communication_s, found.iteration_s)
        return Accounts(_use(found.compute_s, found.iteration_s), link, link)
    log, own = found.log, simulated_worker(found, worker)
    start, end = log.iteration_start[own, -3:-1].tolist()
    # What was sent for the iteration before may still occupy the link in this one.
    begins, ends = by_stage(found, log.sending, worker), by_stage(found, log.sent, worker)
    up, down = (np.array(shares) > 0 for shares in _shares(found))
    return Accounts(
        *(
            _use(_covered(starts, stops, start, end), end - start)
            for starts, stops in (
                (log.step_start[:, own], log.step_end[:, own]),
                (begins[:, up], ends[:, up]),
                (begins[:, down], ends[:, down]),
            )
        )
    )


def workers_accounts(found: Simulation) -> list[Accounts]:
    """Tell that of every worker."""
    if found.log is None or found.log.iteration_start.shape[0] == 1:  # all are alike
        return [accounts(found)] * found.cluster.workers
    return [accounts(found, worker) for worker in range(found.cluster.workers)]


def link_traffic(job: Job, cluster: Cluster) -> tuple[Traffic, ...]:
    """Count the bytes that each host's link carries in an iteration, kind by kind."""
    workers, servers, size = cluster.workers, cluster.servers, job.total_bytes
    if cluster.sync == "ps" and not cluster.colocated:
        served = workers * size / servers
        return (
            Traffic("worker", workers, size, size),
            Traffic("server", servers, served, served),
        )
    # A ring sends each byte 2 (N - 1) / N times. A worker pushes (N - 1) / N to servers on other
    # hosts, and the server beside it sends as much to their workers, by the same link.
    sent = 2 * (workers - 1) / workers * size
    host = "worker with server" if cluster.sync == "ps" else "worker"
    return (Traffic(host, workers, sent, sent),)


def messages(found: Simulation, worker: int = 0) -> Messages:
    """Tell what a worker's link carried and when, for that worker alone."""
    one = steady(found, worker)
    size = np.bincount(found.pieces.operation, found.pieces.stop - found.pieces.start)
    factor = found.cluster.wire_factor
    if found.cluster.sync == "ps":
        factor = min(factor, 1.0)  # beyond that it is the server's link that carries more
    up, down = (factor * np.multiply.outer(shares, size).ravel() for shares in _shares(found))
    happened = ~np.isnan(one.sent.ravel())
    return Messages(
        *(column.ravel()[happened] for column in (one.sending, one.sent, up, down)),
    )


def _shares(found: Simulation) -> tuple[list[float], list[float]]:
    """Return how much of a transfer each stage sends up, and how much it brings down."""
    if isinstance(found.schedule, Plan):
        return [1.0], [1.0]
    stages = found.schedule.stages
    if found.cluster.sync == "allreduce":
        return [stage.share for stage in stages], [stage.share for stage in stages]
    up = [stage.share if stage.link == 0 else 0.0 for stage in stages]
    return up, [stage.share - sent for stage, sent in zip(stages, up, strict=True)]


def _use(busy_s: float, iteration_s: float) -> Use:
    return Use(busy_s, iteration_s - busy_s)


def _covered(starts: Floats, ends: Floats, start: float, end: float) -> float:
    """Return how much of a window these stretches cover; they are equal or do not overlap."""
    happened = ~np.isnan(starts)
    stretches = np.unique(np.stack([starts[happened], ends[happened]]).clip(start, end), axis=1)
    return float((stretches[1] - stretches[0]).sum())
