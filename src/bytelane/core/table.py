"""Lay out the kernel's arrays: queues, dependencies, and which operation delivers which tensor.

Operations are numbered stage by stage, within a stage worker by worker (if every worker has its
own, as with a parameter server), within a worker piece by piece. Each such row is a queue.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from bytelane.core.kernel import ALL_OF_IT, CREDIT, FUSION, IN_ORDER, LANES, NOTHING, Ints, State
from bytelane.core.knobs import UNLIMITED, CreditWindow
from bytelane.core.plan import Plan
from bytelane.core.policy import Policy
from bytelane.core.task import Pieces
from bytelane.job import Job


class _Rule(NamedTuple):
    """A stage's urgencies, and whether it waits for all of the stage before."""

    urgency: Ints
    """Piece -> how urgent it is; 0 goes first."""
    after_all: bool = False


class _Relation(NamedTuple):
    """Key -> values: how many each key has, where they begin, and the values."""

    counts: Ints
    begins: Ints
    values: Ints


_NO_LANES = np.zeros(0, dtype=np.int64)
_NO_LANE_COUNTERS = np.zeros((0, LANES + 1), dtype=np.int64)
_NOBODY_WAITS = _Relation(*(np.zeros(size, dtype=np.int64) for size in (0, 1, 0)))


def policy_state(policy: Policy, job: Job, *, workers: int = 1, own_queues: bool = False) -> State:
    """Lay out a policy for some workers, which share collectives or have queues of their own."""
    pieces = policy.cut(job)
    carried = _carried(pieces)
    state = _lay_out(
        pieces,
        carried,
        [_Rule(_most_urgent(s.priority, carried), s.after_all) for s in policy.stages],
        tensors=len(job.tensors),
        workers=workers,
        copies=workers if own_queues else 1,
        alone=[0] if policy.first_unit_alone and pieces.operation_count else [],
    )
    state.counters[:, FUSION] = policy.fusion_bytes or 0
    set_windows(state, [stage.window for stage in policy.stages])
    return state


def plan_state(plan: Plan, *, workers: int = 1, in_order: bool = True) -> State:
    """Lay out a plan: a queue for each of its stages, in which operations start in its order.

    If not ``in_order``, that order only decides between operations that are ready.
    """
    pieces, tensors = plan.pieces, len(plan.tensor_bytes)
    as_listed = range(len(plan.operations))
    orders = [as_listed if stage.order is None else stage.order for stage in plan.stages]
    places = map(np.argsort, orders)
    rules = [_Rule(p, s.after_all) for p, s in zip(places, plan.stages, strict=True)]
    alone = [number for number, operation in enumerate(plan.operations) if operation.alone]
    state = _lay_out(pieces, _carried(pieces), rules, tensors=tensors, workers=workers, alone=alone)
    state.counters[:, IN_ORDER] = in_order
    set_windows(state, [plan.window] * len(plan.stages))
    if all(lane.window == UNLIMITED for lane in plan.lanes):
        return state
    return _with_lanes(state, plan)


def _with_lanes(state: State, plan: Plan) -> State:
    """Let every lane have the window that the plan gives it, beside the queues' own."""
    state.counters[:, LANES] = 1
    lane = np.array([operation.lane for operation in plan.operations], dtype=np.int64)
    lane_counters = np.zeros((len(plan.lanes), LANES + 1), dtype=np.int64)
    lane_counters[:, CREDIT] = [lane.window.limit for lane in plan.lanes]
    return state._replace(lane=_in_every(len(plan.stages), lane), lane_counters=lane_counters)


def set_windows(state: State, windows: Sequence[CreditWindow]) -> None:
    """Give every queue the window of its stage; all else stays, so this costs next to nothing."""
    copies = state.counters.shape[0] // len(windows)
    state.counters[:, CREDIT] = [window.limit for window in windows for _ in range(copies)]


def _lay_out(
    pieces: Pieces,
    carried: "_Pairs",
    rules: list[_Rule],
    *,
    tensors: int,
    workers: int,
    copies: int = 1,
    alone: Sequence[int] = (),
) -> State:
    count, size = pieces.operation_count, pieces.operation_bytes
    queues, behind_latches = len(rules) * copies, (len(rules) - 1) * copies * count
    # The first stage waits for gradients, the last one delivers tensors, of every worker.
    first = _for_workers(carried, workers, copies, count, tensors)
    needed = _relation(first.tensor, first.operation, workers * tensors)
    waits_for = np.bincount(first.operation)
    served_from = _begins(waits_for)
    if behind_latches:
        waits_for = np.concatenate([waits_for, np.ones(behind_latches, dtype=np.int64)])
        served_from = np.concatenate([np.zeros(behind_latches, dtype=np.int64), served_from])
    latch, released = _latches(rules, copies, count)
    urgency, line_from, urgency_from = _lines(rules, copies, count)
    status, lines = np.zeros((2, queues * count), dtype=np.int64)
    line_head, line_length, heap = np.zeros((3, line_from.size), dtype=np.int64)
    return State(
        size=_in_every(queues, size),
        claim=_in_every(queues, _claims(size, alone)),
        queue=np.arange(queues).repeat(count),
        queue_from=np.array([queue * count for queue in range(queues + 1)]),
        urgency=urgency,
        line_from=line_from,
        urgency_from=urgency_from,
        needed_from=needed.begins,
        needed=needed.values,
        served_from=served_from,
        served=first.tensor,
        latch=latch,
        released_from=released.begins,
        released=released.values,
        waits_for=waits_for,
        carriers=needed.counts,  # an operation delivers the tensors that it waited for
        openers=released.counts,
        lane=_NO_LANES,
        # As a reset leaves it.
        status=status,
        missing=waits_for.copy(),
        operations_missing=needed.counts.copy(),
        openers_missing=released.counts.copy(),
        lines=lines,
        line_head=line_head,
        line_length=line_length,
        heap=heap,
        lane_counters=_NO_LANE_COUNTERS,
        counters=np.zeros((queues, LANES + 1), dtype=np.int64),
    )


def _claims(size: Ints, alone: Sequence[int]) -> Ints:
    """Return how much of its queue's window each operation takes; ``alone`` ones take all of it."""
    if not alone:
        return size
    claim = size.copy()
    claim[np.array(alone)] = ALL_OF_IT
    return claim


class _Pairs(NamedTuple):
    """Each operation with each tensor that it carries some of, once; operations rise."""

    operation: Ints
    tensor: Ints


def _carried(pieces: Pieces) -> _Pairs:
    if pieces.operation.size == pieces.operation_count:  # one piece each: nothing is there twice
        return _Pairs(pieces.operation, pieces.tensor)
    tensors = int(pieces.tensor.max()) + 1
    return _Pairs(*np.divmod(np.unique(pieces.operation * tensors + pieces.tensor), tensors))


def _most_urgent(priority: tuple[int, ...], carried: _Pairs) -> Ints:
    """Return how urgent each piece is: as the most urgent of its tensors."""
    by_pair = _numbered(priority)[carried.tensor]
    count = int(carried.operation[-1]) + 1 if by_pair.size else 0
    if by_pair.size == count:
        return by_pair
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, carried.operation, by_pair)
    return least


@lru_cache(maxsize=16)  # a tuner asks for the same order again and again
def _numbered(priority: tuple[int, ...]) -> Ints:
    """Number the priorities from 0."""
    given = np.array(priority, dtype=np.int64)
    # Most policies count layers or tensors. Gaps cost an empty line each, and no sorting.
    if given.size and given.min() >= 0 and given.max() < 4 * given.size:
        return given
    numbers: Ints = np.unique(given, return_inverse=True)[1]
    return numbers


def _for_workers(carried: _Pairs, workers: int, copies: int, count: int, tensors: int) -> _Pairs:
    """Repeat the pairs for every worker's tensors, and for its own operations if it has some."""
    if workers == 1:
        return carried
    worker = np.arange(workers)
    if copies == 1:  # operation by operation, so that they rise
        return _Pairs(
            carried.operation.repeat(workers),
            np.add.outer(carried.tensor, worker * tensors).ravel(),
        )
    return _Pairs(
        np.add.outer(worker * count, carried.operation).ravel(),
        np.add.outer(worker * tensors, carried.tensor).ravel(),
    )


def _latches(rules: list[_Rule], copies: int, count: int) -> tuple[Ints, _Relation]:
    """Put latches between the stages: one per piece, or one for all.

    Returns each operation's latch, and the operations that each latch releases.
    """
    if len(rules) == 1:
        return np.full(copies * count, NOTHING), _NOBODY_WAITS
    piece = _in_every(copies, np.arange(count))
    latch, behind = [], []
    latches = 0
    for stage, rule in enumerate(rules[1:], start=1):
        latch.append(latches + (np.zeros_like(piece) if rule.after_all else piece))
        behind.append(np.arange(stage * piece.size, (stage + 1) * piece.size))
        latches += min(1, count) if rule.after_all else count
    leads_to = np.concatenate([*latch, np.full(piece.size, NOTHING)])
    return leads_to, _relation(np.concatenate(latch), np.concatenate(behind), latches)


def _lines(rules: list[_Rule], copies: int, count: int) -> tuple[Ints, Ints, Ints]:
    """Number the urgencies queue by queue, and make room for all operations in their lines.

    Returns each operation's urgency, where each line begins, and where each queue's urgencies do.
    """
    urgencies = [rule.urgency for rule in rules for _ in range(copies)]
    lengths = [np.bincount(urgency) for urgency in urgencies]
    urgency_from = np.array([0, *accumulate(length.size for length in lengths)])
    if len(urgencies) == 1:
        return urgencies[0], _begins(lengths[0]), urgency_from
    urgency = np.concatenate(urgencies) + urgency_from[:-1].repeat(count)
    return urgency, _begins(np.concatenate(lengths)), urgency_from


def _in_every(queues: int, column: Ints) -> Ints:
    return column if queues == 1 else np.tile(column, queues)


def _begins(lengths: Ints) -> Ints:
    begins = np.zeros(lengths.size + 1, dtype=np.int64)
    lengths.cumsum(out=begins[1:])
    return begins


def _relation(keys: Ints, values: Ints, count: int) -> _Relation:
    counts = np.bincount(keys, minlength=count)
    return _Relation(counts, _begins(counts), values[keys.argsort(kind="stable")])
