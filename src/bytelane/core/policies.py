"""Built-in policies: FIFO, Horovod fusion, MG-WFBP, P3, ByteScheduler, TicTac, DeAR, FSDP, optimal.

``sequential``, ``fifo``, ``fusion`` and ``mg-wfbp`` send in ready order and keep the barrier that
frameworks put between iterations. Under the others a layer starts when its own tensors are there.
"""

from collections.abc import Sequence

from bytelane.cluster import Cluster
from bytelane.core.cutting import Groups, Parts, Units
from bytelane.core.knobs import ONE_AT_A_TIME, UNLIMITED, CreditWindow, Knobs
from bytelane.core.policy import Policy, Stage, register
from bytelane.core.tictac import random_order, tac_order, tic_order
from bytelane.job import Job
from bytelane.knob import CREDIT, FIRST, FUSION, PARTITION, PERMUTATION

MEBIBYTE = 2**20


@register("sequential")
def sequential(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send everything after the backward pass, and pull after all has been pushed."""
    stages = _stages(cluster, _equal(job), UNLIMITED, pull_after_all=True)
    return Policy("sequential", stages, barrier=True, after_backward=True)


@register("fifo")
def fifo(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send whole tensors in ready order, without limit: wait-free backpropagation."""
    return Policy("fifo", _stages(cluster, _equal(job), UNLIMITED), barrier=True)


@register("fusion", knobs=[FUSION.with_default(64 * MEBIBYTE)])
def fusion(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send all ready tensors together, one message at a time (Horovod)."""
    stages = _stages(cluster, _equal(job), ONE_AT_A_TIME)
    return Policy("fusion", stages, barrier=True, fusion_bytes=knobs.fusion_bytes)


@register("mg-wfbp")
def mg_wfbp(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Merge neighbours where waiting costs less than another start-up (Shi et al., 2019)."""
    groups = _merged_where_it_pays(job, cluster)
    stages = _stages(cluster, _equal(job), UNLIMITED)
    return Policy("mg-wfbp", stages, barrier=True, cutting=Groups(groups))


@register("p3", knobs=[PARTITION.with_default(160_000), CREDIT.with_default(1)])
def p3(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send small slices in the order of need, one at a time (Jayarajan et al., 2019)."""
    return _by_need("p3", job, cluster, knobs)


@register("bytescheduler", knobs=[PARTITION.with_default(4 * MEBIBYTE), CREDIT.with_default(2)])
def bytescheduler(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send parts in the order of need, a window of them in flight (Peng et al., 2019)."""
    return _by_need("bytescheduler", job, cluster, knobs)


@register("units", knobs=[PARTITION.with_default(MEBIBYTE // 2), CREDIT.with_default(2), FIRST])
def units(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send equal units in the order of need: bytescheduler, with small tensors joined."""
    assert knobs.partition_bytes is not None
    first = knobs.first_bytes
    cutting = Units(knobs.partition_bytes, first, first_alone=first is not None)
    stages = _stages(cluster, _need(job), CreditWindow(knobs.credit_bytes))
    return Policy("units", stages, barrier=False, cutting=cutting)


@register("tic", sync=("ps",))
def tic(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Pull after all pushes; first what the layer waiting for the fewest pulls needs (TicTac)."""
    return _ordered_pulls("tic", job, cluster, tic_order(job))


@register("tac", sync=("ps",))
def tac(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Pull after all pushes, by the computing that a pull unlocks and its own time (TicTac)."""
    seconds = [cluster.transfer_s(tensor.bytes) for tensor in job.tensors]
    return _ordered_pulls("tac", job, cluster, tac_order(job, seconds))


@register("random", sync=("ps",), knobs=[PERMUTATION])
def random(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Pull after all pushes, in a random order that stays the same: TicTac's baseline."""
    order = random_order(job, int(knobs.values.get(PERMUTATION.key, 0)))
    return _ordered_pulls("random", job, cluster, order)


@register("dear", sync=("allreduce",), knobs=[FUSION.with_default(25 * MEBIBYTE)])
def dear(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Reduce-scatter in ready order, then all-gather in the order of need (Zhang et al., 2023)."""
    assert knobs.fusion_bytes is not None
    return _scatter_then_gather("dear", job, _fused_in_ready_order(job, knobs.fusion_bytes))


@register("fsdp", sync=("allreduce",))
def fsdp(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Reduce-scatter and all-gather layer by layer, as fully sharded data parallel does."""
    by_layer = tuple(tensor.complete_after for tensor in job.tensors)
    return _scatter_then_gather("fsdp", job, _dense(by_layer))


@register("optimal")
def optimal(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Serve the most urgent tensor at every instant at no cost: no policy is faster."""
    stages = _stages(cluster, _need(job), UNLIMITED)
    return Policy("optimal", stages, barrier=False, preemptive=True)


def _stages(
    cluster: Cluster, priority: Sequence[int], window: CreditWindow, pull_after_all: bool = False
) -> tuple[Stage, ...]:
    """One all-reduce, or a push and a pull with the same rule."""
    urgency = tuple(priority)
    if cluster.sync == "allreduce":
        return (Stage("all-reduce", urgency, window),)
    push = Stage("push", urgency, window)
    return push, Stage("pull", urgency, window, after_all=pull_after_all)


def _equal(job: Job) -> tuple[int, ...]:
    return (0,) * len(job.tensors)


def _need(job: Job) -> tuple[int, ...]:
    return tuple(job.columns.needed_by.tolist())


def _by_need(name: str, job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    stages = _stages(cluster, _need(job), CreditWindow(knobs.credit_bytes))
    return Policy(name, stages, barrier=False, cutting=Parts(knobs.partition_bytes))


def _ordered_pulls(name: str, job: Job, cluster: Cluster, rank: Sequence[int]) -> Policy:
    push = Stage("push", _equal(job))
    pull = Stage("pull", tuple(rank), after_all=True)
    return Policy(name, (push, pull), barrier=False)


def _scatter_then_gather(name: str, job: Job, groups: tuple[int, ...]) -> Policy:
    scatter = Stage("reduce-scatter", _equal(job))
    gather = Stage("all-gather", _need(job), after_all=True)
    return Policy(name, (scatter, gather), barrier=False, cutting=Groups(groups))


def _ready_order(job: Job) -> list[int]:
    tensors = job.tensors
    return sorted(range(len(tensors)), key=lambda t: -tensors[t].complete_after)


def _fused_in_ready_order(job: Job, limit: int) -> tuple[int, ...]:
    """Group neighbours greedily up to a size; a larger tensor travels alone."""
    groups = [0] * len(job.tensors)
    number, room = -1, 0
    for tensor in _ready_order(job):
        size = job.tensors[tensor].bytes
        if size > room:
            number, room = number + 1, limit
        groups[tensor] = number
        room -= size
    return tuple(groups)


def _merged_where_it_pays(job: Job, cluster: Cluster) -> tuple[int, ...]:
    """Scan from the first gradient to the last; merge the next one in, or close the group.

    Merge if the next gradient is ready before this group would have arrived, and either the group
    could not have started before that anyway or the wait is shorter than a start-up. As in the
    paper, messages are taken to follow each other, although some may overlap.
    """
    start_up = _start_up_s(job, cluster)
    ready_s = _ready_times(job)
    groups = [0] * len(job.tensors)
    number, link_free, size, ready = 0, 0.0, 0, 0.0
    for tensor in _ready_order(job):
        starts = max(link_free, ready)
        ends = starts + cluster.transfer_s(size)
        following = ready_s[job.tensors[tensor].complete_after]
        pays = following < ends and (starts > following or following - starts < start_up)
        if size and not pays:
            number, link_free, size = number + 1, ends, 0
        groups[tensor] = number
        size += job.tensors[tensor].bytes
        ready = following
    return tuple(groups)


def _start_up_s(job: Job, cluster: Cluster) -> float:
    """Return the start-up time of the smallest message, with the wait that a floor adds to it."""
    link = cluster.link
    smallest = min((tensor.bytes for tensor in job.tensors), default=0)
    held_up_s = link.floor_s - cluster.wire_factor * smallest / link.slower
    return max(link.overhead_s, held_up_s) + link.latency_s


def _ready_times(job: Job) -> list[float]:
    """When each layer's backward pass ends, from the start of backward."""
    times, now = [0.0] * len(job.layers), 0.0
    for index in reversed(range(len(job.layers))):
        now += job.layers[index].backward_s
        times[index] = now
    return times


def _dense(numbers: Sequence[int]) -> tuple[int, ...]:
    """Renumber from the largest down without gaps: ready order."""
    place = {number: i for i, number in enumerate(sorted(set(numbers), reverse=True))}
    return tuple(place[number] for number in numbers)
