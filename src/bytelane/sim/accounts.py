"""Utilisation per iteration: busy and idle time of compute and links, and bytes on each link.

With jitter the numbers are means over all iterations that were measured.

Bytes are payload: parameters and gradients, without headers. A link's two directions are counted
apart.
"""

from typing import NamedTuple

import numpy as np

from bytelane.cluster import Cluster
from bytelane.job import Job
from bytelane.sim.engine import KEPT, Simulation
from bytelane.sim.layout import Floats, Moments
from bytelane.sim.spans import link_shares
from bytelane.sim.steady import by_stage, simulated_worker, steady, whole_iterations


class Use(NamedTuple):
    """How a resource spent an iteration."""

    busy_s: float
    idle_s: float
    spread_s: float = 0.0
    """Standard deviation of the idle time over iterations; zero without jitter."""

    @property
    def busy_share(self) -> float:
        total = self.busy_s + self.idle_s
        return self.busy_s / total if total else 0.0


class Accounts(NamedTuple):
    """How one worker spent an iteration.

    A link is busy while a message of this worker occupies it, overhead included, and for as long
    as a server's link, which other workers use too, takes for it.
    """

    compute: Use
    up: Use
    down: Use
    """Of its link; one and the same where a transfer uses both directions at once: an all-reduce,
    or a push and a pull if the servers share the workers' links."""


class Traffic(NamedTuple):
    """Bytes that the link of each of these hosts carries per iteration."""

    host: str
    hosts: int
    up_bytes: float
    down_bytes: float


class Messages(NamedTuple):
    """What a worker's link carried for one iteration's gradients: columns, one row per operation.

    Seconds since the forward pass began; operations that travel in one message have the same.
    """

    start_s: Floats
    end_s: Floats
    up_bytes: Floats
    down_bytes: Floats


def accounts(found: Simulation, worker: int = 0) -> Accounts:
    """Return how long a worker's computing and link were busy and idle per iteration."""
    by_resource = zip(*accounts_by_iteration(found, worker), strict=True)
    return Accounts(*map(_mean, by_resource))


def accounts_by_iteration(found: Simulation, worker: int = 0) -> list[Accounts]:
    """Return the accounts of every iteration seen whole: one, or with jitter many."""
    if found.log is None:
        link = _use(found.communication_s, found.iteration_s)
        return [Accounts(_use(found.compute_s, found.iteration_s), link, link)]
    iterations = range(whole_iterations(found))
    return [_accounts_in(found, found.log.last(KEPT, back), worker) for back in iterations[::-1]]


def workers_accounts(found: Simulation) -> list[Accounts]:
    """Return the accounts of every worker."""
    if found.log is None or found.log.iteration_start.shape[0] == 1:  # all are alike
        return [accounts(found)] * found.cluster.workers
    return [accounts(found, worker) for worker in range(found.cluster.workers)]


def link_traffic(job: Job, cluster: Cluster) -> tuple[Traffic, ...]:
    """Return the bytes that a host's link carries per iteration, for each kind of host."""
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
    """Return the messages of one worker on its link, with their times."""
    one, size = steady(found, worker), found.pieces.operation_bytes
    shares = link_shares(found.schedule, found.cluster)
    up, down = (np.multiply.outer(share, size).ravel() for share in shares)
    happened = ~np.isnan(one.sent.ravel())
    return Messages(
        *(column.ravel()[happened] for column in (one.sending, one.sent, up, down)),
    )


def _accounts_in(found: Simulation, log: Moments, worker: int) -> Accounts:
    own = simulated_worker(found, worker)
    start, end = log.iteration_start[own, -3:-1].tolist()
    # Messages of the iteration before may still occupy the link in this one.
    begins, ends = by_stage(found, log.sending, worker), by_stage(found, log.sent, worker)
    up, down = (np.array(share) > 0 for share in link_shares(found.schedule, found.cluster))
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


def _mean(uses: tuple[Use, ...]) -> Use:
    busy, idle, _ = np.array(uses).T
    return Use(float(busy.mean()), float(idle.mean()), float(idle.std()))


def _use(busy_s: float, iteration_s: float) -> Use:
    return Use(busy_s, iteration_s - busy_s)


def _covered(starts: Floats, ends: Floats, start: float, end: float) -> float:
    """Return how much of a window these intervals cover; they are equal or do not overlap."""
    begins, stops = starts.clip(start, end), ends.clip(start, end)
    inside = stops > begins  # false for NaN: the message was not sent
    once, row = np.unique(begins[inside], return_index=True)
    return float((stops[inside][row] - once).sum())
