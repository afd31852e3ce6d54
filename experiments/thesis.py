"""Chapter 4 of the thesis "Making DDNNs Friendlier In The Data Center": its rules as data.

Its simulator sends fused all-reduces one at a time and never interrupts one. Its "FIFO" keeps the
barrier between iterations and its "priority queue" drops it, so it changes two things at once.
"""

from bytelane.cluster import Cluster, Link
from bytelane.core import CreditWindow, Groups, Policy, Stage
from bytelane.job import Job

BUFFER_BYTES = 6_280_000
STEP_S = 10e-6  # propagation delay of each of the ring's 2 (W - 1) steps
WORKERS = 2

# The two that the thesis shows, and the two that it leaves out.
CELLS = {
    "FIFO, barrier": (False, True),
    "priority, no barrier": (True, False),
    "FIFO, no barrier": (False, False),
    "priority, barrier": (True, True),
}
FIFO, PRIORITY = list(CELLS)[:2]


def make_thesis_policy(job: Job, cell: str) -> Policy:
    """Make one of the four combinations; a group is as urgent as its lowest layer."""
    by_need, barrier = CELLS[cell]
    priority = tuple(tensor.needed_by if by_need else 0 for tensor in job.tensors)
    one_at_a_time = CreditWindow(1)
    stage = Stage("all-reduce", priority, one_at_a_time)
    return Policy(cell, (stage,), barrier=barrier, cutting=Groups(fused_upwards(job)))


def fused_upwards(job: Job) -> tuple[int, ...]:
    """Fill buffers from layer 0 upward; return each tensor's buffer."""
    groups: list[int] = []
    number, room = -1, 0
    for tensor in job.tensors:
        if tensor.bytes > room:
            number, room = number + 1, BUFFER_BYTES
        groups.append(number)
        room -= tensor.bytes
    return tuple(groups)


def make_thesis_cluster(gigabits: float) -> Cluster:
    """Two workers; an all-reduce takes 2 (W - 1) steps, and each of them the delay."""
    return Cluster.star(WORKERS, Link(gigabits * 1e9 / 8, overhead_s=2 * (WORKERS - 1) * STEP_S))
