"""Lay out the kernel's arrays: who waits for whom, and who brings which tensor home.

Operations are numbered stage by stage, within a stage worker by worker (if every worker has its
own, as with a parameter server), within a worker piece by piece. Each such row is a lane.
"""

from itertools import accumulate
from typing import NamedTuple

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


class _Rule(NamedTuple):
    """How one stage decides."""

    urgency: Ints
    """Piece -> how urgent it is; 0 goes first."""
    limit: int
    after_all: bool = False


class _Relation(NamedTuple):
    """Key -> values: where each key's values begin, and the values."""

    begins: Ints
    values: Ints


def policy_state(policy: Policy, job: Job, *, workers: int = 1, own_lanes: bool = False) -> State:
    """Lay out a policy for some workers, which share collectives or have lanes of their own."""
    pieces = policy.cut(job)
    carried = _carried(pieces)
    rules = [
        _Rule(_most_urgent(stage.priority, carried), stage.window.limit, stage.after_all)
        for stage in policy.stages
    ]
    return _lay_out(
        pieces,
        carried,
        rules,
        tensors=len(job.tensors),
        workers=workers,
        copies=workers if own_lanes else 1,
        fusion=policy.fusion_bytes or 0,
    )


def plan_state(plan: Plan, *, workers: int = 1) -> State:
    """Lay out a plan: one lane, in which operations start in the order of their numbers."""
    pieces = plan.pieces
    order = np.arange(len(plan.operations), dtype=np.int64)
    return _lay_out(
        pieces,
        _carried(pieces),
        [_Rule(order, plan.window.limit)],
        tensors=len(plan.tensor_bytes),
        workers=workers,
        in_order=True,
    )


def _lay_out(
    pieces: Pieces,
    carried: "_Pairs",
    rules: list[_Rule],
    *,
    tensors: int,
    workers: int,
    copies: int = 1,
    fusion: int = 0,
    in_order: bool = False,
) -> State:
    count, stages = pieces.operation_count, len(rules)
    lanes = stages * copies
    counters = np.zeros((lanes, FUSION + 1), dtype=np.int64)
    counters[:, CREDIT] = [rule.limit for rule in rules for _ in range(copies)]
    counters[:, FUSION] = fusion
    counters[:, IN_ORDER] = in_order
    # The first stage waits for gradients, the last one brings tensors home, of every worker.
    first = last = _for_workers(carried, workers, copies, count, tensors)
    if stages > 1:
        last = _Pairs(first.operation + (stages - 1) * copies * count, first.tensor)
    gate, openers, released = _gates(rules, copies, count)
    needed = _relation(first.tensor, first.operation, workers * tensors)
    served = _relation(last.operation, last.tensor, lanes * count)
    waits_for = np.bincount(first.operation, minlength=lanes * count)
    if released.values.size:
        waits_for[released.values] += 1
    urgency, line_from, urgency_from = _lines(rules, copies, count)
    servers = needed.begins[1:] - needed.begins[:-1]  # who takes from a tensor also brings it home
    stage, missing, queue = np.empty((3, lanes * count), dtype=np.int64)
    line_head, line_length, heap = np.empty((3, line_from.size), dtype=np.int64)
    state = State(
        size=_in_every(lanes, pieces.operation_bytes),
        lane=np.repeat(np.arange(lanes), count),
        lane_from=np.arange(lanes + 1) * count,
        urgency=urgency,
        line_from=line_from,
        urgency_from=urgency_from,
        needed_from=needed.begins,
        needed=needed.values,
        served_from=served.begins,
        served=served.values,
        gate=gate,
        released_from=released.begins,
        released=released.values,
        waits_for=waits_for,
        servers=servers,
        openers=openers,
        stage=stage,
        missing=missing,
        operations_missing=np.empty_like(servers),
        openers_missing=np.empty_like(openers),
        queue=queue,
        line_head=line_head,
        line_length=line_length,
        heap=heap,
        counters=counters,
    )
    reset(state)
    return state


class _Pairs(NamedTuple):
    """Each operation with each tensor that it carries some of, once."""

    operation: Ints
    tensor: Ints


def _carried(pieces: Pieces) -> _Pairs:
    if pieces.operation.size == pieces.operation_count:  # one piece each: nothing is there twice
        return _Pairs(pieces.operation, pieces.tensor)
    return _Pairs(*np.unique(np.stack([pieces.operation, pieces.tensor]), axis=1))


def _most_urgent(priority: tuple[int, ...], carried: _Pairs) -> Ints:
    """Number the priorities from 0; a piece is as urgent as the most urgent of its tensors."""
    by_pair = _numbered(np.array(priority, dtype=np.int64))[carried.tensor]
    count = int(carried.operation[-1]) + 1 if by_pair.size else 0
    if by_pair.size == count:
        return by_pair
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, carried.operation, by_pair)
    return least


def _numbered(priority: Ints) -> Ints:
    # Most policies count layers or tensors. Gaps cost an empty line each, and no sorting.
    if priority.size and priority.min() >= 0 and priority.max() < 4 * priority.size:
        return priority
    numbers: Ints = np.unique(priority, return_inverse=True)[1]
    return numbers


def _for_workers(carried: _Pairs, workers: int, copies: int, count: int, tensors: int) -> _Pairs:
    """Repeat the pairs for every worker's tensors, and for its own operations if it has some."""
    if workers == 1:
        return carried
    worker = np.repeat(np.arange(workers), carried.operation.size)
    own = worker * count if copies > 1 else 0
    return _Pairs(
        own + np.tile(carried.operation, workers),
        worker * tensors + np.tile(carried.tensor, workers),
    )


def _gates(rules: list[_Rule], copies: int, count: int) -> tuple[Ints, Ints, _Relation]:
    """Put gates between the stages: one a piece, or one for all.

    Returns each operation's gate, how many operations open each gate, and who is behind it.
    """
    if len(rules) == 1:
        nobody = np.zeros(0, dtype=np.int64)
        return np.full(copies * count, NOTHING), nobody, _Relation(np.zeros(1, np.int64), nobody)
    piece = _in_every(copies, np.arange(count))
    gate, behind = [], []
    gates = 0
    for stage, rule in enumerate(rules[1:], start=1):
        gate.append(gates + (np.zeros_like(piece) if rule.after_all else piece))
        behind.append(np.arange(stage * piece.size, (stage + 1) * piece.size))
        gates += min(1, count) if rule.after_all else count
    leads_to = np.concatenate([*gate, np.full(piece.size, NOTHING)])
    number = np.concatenate(gate)
    openers = np.bincount(number, minlength=gates)
    return leads_to, openers, _relation(number, np.concatenate(behind), gates)


def _lines(rules: list[_Rule], copies: int, count: int) -> tuple[Ints, Ints, Ints]:
    """Number the urgencies lane by lane, and make room for everyone who may stand in line.

    Returns each operation's urgency, where each line begins, and where each lane's urgencies do.
    """
    lengths = [np.bincount(rule.urgency) for rule in rules for _ in range(copies)]
    urgency_from = np.array([0, *accumulate(length.size for length in lengths)])
    urgency = np.concatenate([rule.urgency for rule in rules for _ in range(copies)])
    if len(lengths) > 1:
        urgency += np.repeat(urgency_from[:-1], count)
    return urgency, _begins(np.concatenate(lengths)), urgency_from


def _in_every(lanes: int, column: Ints) -> Ints:
    return column if lanes == 1 else np.tile(column, lanes)


def _begins(lengths: Ints) -> Ints:
    begins = np.zeros(lengths.size + 1, dtype=np.int64)
    lengths.cumsum(out=begins[1:])
    return begins


def _relation(keys: Ints, values: Ints, count: int) -> _Relation:
    begins = _begins(np.bincount(keys, minlength=count))
    if (keys[1:] >= keys[:-1]).all():  # they are most of the time, and sorting is most of the cost
        return _Relation(begins, values)
    return _Relation(begins, values[np.argsort(keys, kind="stable")])
