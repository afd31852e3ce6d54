"""The optimum: an ideal link that serves the most urgent tensor at every instant.

No overhead, no latency, no smallest piece, and a transfer gives way to a more urgent one at once.
It is a bound that no policy beats. When a backward pass starts all tensors have arrived, so one
iteration is enough.
"""

import heapq

from bytelane.cluster import Cluster
from bytelane.job import Job


def optimal_iteration_s(job: Job, cluster: Cluster) -> float:
    """Return the time of an iteration that only bytes and computing limit."""
    factor = max(cluster.compute_factors, default=1.0)
    arrived = _arrivals(job, cluster, factor)
    now = factor * sum(layer.backward_s for layer in job.layers) + job.outside_s
    for index, layer in enumerate(job.layers):
        now = max(now, arrived[index]) + factor * (layer.update_s + layer.forward_s)
    return now


def _arrivals(job: Job, cluster: Cluster, factor: float) -> list[float]:
    """Return when all tensors that each layer needs first have arrived, from backward's start."""
    arrived = [0.0] * len(job.layers)
    completes: list[list[int]] = [[] for _ in job.layers]
    for t, tensor in enumerate(job.tensors):
        completes[tensor.complete_after].append(t)
    load_factor, rate = cluster.load_factor, cluster.link.slower
    waiting: list[tuple[int, int, float]] = []  # layer that needs it, tensor, seconds left
    now = 0.0
    for index in reversed(range(len(job.layers))):
        now = _serve(waiting, now, now + factor * job.layers[index].backward_s, arrived)
        for t in completes[index]:
            seconds = load_factor * job.tensors[t].bytes / rate
            heapq.heappush(waiting, (job.tensors[t].needed_by, t, seconds))
    _serve(waiting, now, float("inf"), arrived)
    return arrived


def _serve(
    waiting: list[tuple[int, int, float]], now: float, until: float, arrived: list[float]
) -> float:
    """Send the most urgent tensors until the moment ``until``; return that."""
    while waiting:
        layer, tensor, seconds = waiting[0]
        if now + seconds > until:
            heapq.heapreplace(waiting, (layer, tensor, seconds - (until - now)))
            break
        heapq.heappop(waiting)
        now += seconds
        arrived[layer] = max(arrived[layer], now)
    return until
