"""Lay out the kernel's arrays: who waits for whom, and who brings which tensor home.

Operations are numbered stage by stage, within a stage worker by worker (if every worker has its
own, as with a parameter server), within a worker piece by piece. Each such row is a lane.
"""

import numpy as np

from bytelane.core.kernel import (
    CREDIT,
    FUSION,
    IN_ORDER,
    NOTHING,
    Ints,
    State,
    reset,
)
from bytelane.core.plan import Plan
from bytelane.core.policy import Policy
from bytelane.core.task import Pieces
from bytelane.job import Job


def policy_state(policy: Policy, job: Job, *, workers: int = 1, own_lanes: bool = False) -> State:
    """Lay out a policy for some workers, which share collectives or have lanes of their own."""
    pieces = policy.cut(job)
    carried = _carried(pieces)
    count = pieces.operation_count
    return _lay_out(
        pieces,
        [_least(np.asarray(stage.priority, np.int64), carried, count) for stage in policy.stages],
        [stage.window.limit for stage in policy.stages],
        [stage.after_all for stage in policy.stages],
        tensors=len(job.tensors),
        workers=workers,
        copies=workers if own_lanes else 1,
        fusion=policy.fusion_bytes or 0,
    )


def plan_state(plan: Plan, *, workers: int = 1) -> State:
    """Lay out a plan: one lane, in which operations start in the order of their numbers."""
    order = np.arange(len(plan.operations), dtype=np.int64)
    return _lay_out(
        plan.pieces,
        [order],
        [plan.window.limit],
        [False],
        tensors=len(plan.tensor_bytes),
        workers=workers,
        in_order=True,
    )


def _lay_out(
    pieces: Pieces,
    priorities: list[Ints],
    limits: list[int],
    after_all: list[bool],
    *,
    tensors: int,
    workers: int,
    copies: int = 1,
    fusion: int = 0,
    in_order: bool = False,
) -> State:
    count, stages = pieces.operation_count, len(priorities)
    carried = _carried(pieces)
    lanes = stages * copies
    operations = lanes * count
    size = np.bincount(pieces.operation, pieces.stop - pieces.start, count).astype(np.int64)
    counters = np.zeros((lanes, FUSION + 1), dtype=np.int64)
    counters[:, CREDIT] = np.repeat(np.array(limits, dtype=np.int64), copies)
    counters[:, FUSION] = fusion
    counters[:, IN_ORDER] = in_order
    # The first stage waits for gradients, the last one brings tensors home, of every worker.
    first, last = (
        _for_workers(carried, workers, copies, count, tensors, offset)
        for offset in (0, (stages - 1) * copies * count)
    )
    gate, openers, released = _gates(after_all, copies, count)
    waits_for = np.bincount(first[0], minlength=operations)
    waits_for += np.bincount(released[1], minlength=operations)
    return _filled(
        size=np.tile(size, lanes),
        priority=np.concatenate([np.tile(priority, copies) for priority in priorities]),
        lane=np.repeat(np.arange(lanes, dtype=np.int64), count),
        lane_from=np.arange(lanes + 1, dtype=np.int64) * count,
        needed=_relation(first[1], first[0], workers * tensors),
        served=_relation(last[0], last[1], operations),
        gate=gate,
        released=_relation(released[0], released[1], openers.size),
        waits_for=waits_for,
        servers=np.bincount(last[1], minlength=workers * tensors),
        openers=openers,
        counters=counters,
    )


Pairs = tuple[Ints, Ints]
Relation = tuple[Ints, Ints]


def _carried(pieces: Pieces) -> Pairs:
    """Return each pair of an operation and a tensor that it carries some of, once."""
    if pieces.operation.size == pieces.operation_count:  # one piece each: nothing is there twice
        return pieces.operation, pieces.tensor
    pairs = np.unique(np.stack([pieces.operation, pieces.tensor]), axis=1)
    return pairs[0], pairs[1]


def _least(priority: Ints, carried: Pairs, count: int) -> Ints:
    """Return for each piece the most urgent priority among its tensors."""
    if carried[0].size == count:
        return priority[carried[1]]
    least = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(least, carried[0], priority[carried[1]])
    return least


def _for_workers(
    carried: Pairs, workers: int, copies: int, count: int, tensors: int, offset: int
) -> Pairs:
    """Repeat the pairs for every worker's tensors, and for its own operations if it has some."""
    if workers == 1:
        return offset + carried[0], carried[1]
    worker = np.repeat(np.arange(workers, dtype=np.int64), carried[0].size)
    own = worker if copies > 1 else np.zeros_like(worker)
    operation = offset + own * count + np.tile(carried[0], workers)
    return operation, worker * tensors + np.tile(carried[1], workers)


def _gates(after_all: list[bool], copies: int, count: int) -> tuple[Ints, Ints, Pairs]:
    """Put gates between the stages: one a piece, or one for all.

    Returns each operation's gate, how many operations open each gate, and pairs of a gate and an
    operation behind it.
    """
    piece = np.tile(np.arange(count, dtype=np.int64), copies)
    gate, before, behind = [], [], []
    gates = 0
    for stage, waits_for_all in enumerate(after_all[1:], start=1):
        number = gates + (np.zeros_like(piece) if waits_for_all else piece)
        gate.append(number)
        before.append(number)
        behind.append(stage * piece.size + np.arange(piece.size, dtype=np.int64))
        gates += min(1, count) if waits_for_all else count
    gate.append(np.full(piece.size, NOTHING, dtype=np.int64))
    empty = [np.zeros(0, dtype=np.int64)]
    number = np.concatenate(before + empty)
    openers = np.bincount(number, minlength=gates)
    return np.concatenate(gate), openers, (number, np.concatenate(behind + empty))


def _relation(keys: Ints, values: Ints, count: int) -> Relation:
    """Return where each key's values begin, and the values, in their order, key by key."""
    begins = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=begins[1:])
    return begins, values[np.argsort(keys, kind="stable")]


def _filled(
    *, needed: Relation, served: Relation, released: Relation, counters: Ints, **columns: Ints
) -> State:
    operations = columns["size"].size
    state = State(
        needed_from=needed[0],
        needed=needed[1],
        served_from=served[0],
        served=served[1],
        released_from=released[0],
        released=released[1],
        stage=np.zeros(operations, dtype=np.int64),
        missing=np.zeros(operations, dtype=np.int64),
        operations_missing=np.zeros(columns["servers"].size, dtype=np.int64),
        openers_missing=np.zeros(columns["openers"].size, dtype=np.int64),
        queue=np.zeros(operations, dtype=np.int64),
        arrival=np.zeros(operations, dtype=np.int64),
        counters=counters,
        **columns,
    )
    reset(state)
    return state
