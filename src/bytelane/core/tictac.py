"""TicTac: the order in which to receive tensors, from the graph of layers (Hashemi et al.).

Timing-independent (TIC) ranks a receive by how many receives the least demanding operation that
needs it waits for. Timing-aware (TAC) picks receives one by one, by the computing that each unlocks
and the time it takes.

The papers' comparison is often quoted the wrong way round. Receiving A before B costs
``M_A + max(P_A, M_B) + P_B``, so A goes first exactly when ``min(P_B, M_A) < min(P_A, M_B)``. That
is not transitive under ties: pick one per round, do not sort.

Its baseline is the order in which an unmodified framework happens to receive: any permutation.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bytelane.job import Job

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def random_order(job: Job, seed: int) -> list[int]:
    """Return a random priority for each tensor, the same ones for the same seed on all ranks."""

    def drawn(tensor: int) -> bytes:
        return hashlib.sha256(f"{seed}/{tensor}".encode()).digest()

    order = sorted(range(len(job.tensors)), key=drawn)
    return sorted(range(len(order)), key=order.__getitem__)


def tic_order(job: Job) -> list[int]:
    """Return each tensor's priority, the smallest first; ties are possible."""
    if _is_chain(job):
        return [tensor.needed_by for tensor in job.tensors]
    needs = _needs(job)
    waiting = np.where(needs, needs.sum(axis=1)[:, None], needs.shape[1] + 1)
    return [int(rank) for rank in waiting.min(axis=0)]


def tac_order(job: Job, transfer_s: Sequence[float]) -> list[int]:
    """Return each tensor's place in the order of receiving."""
    if _is_chain(job):
        # The lowest outstanding tensor is the only one that unlocks anything.
        places = sorted(range(len(job.tensors)), key=lambda t: job.tensors[t].needed_by)
    else:
        compute_s = np.array([layer.forward_s for layer in job.layers])
        places = _pick_one_by_one(_needs(job), compute_s, np.asarray(transfer_s))
    rank = [0] * len(places)
    for place, tensor in enumerate(places):
        rank[tensor] = place
    return rank


def _is_chain(job: Job) -> bool:
    return all(layer.after is None for layer in job.layers)


def _needs(job: Job) -> Bools:
    """Layer x tensor: which tensors must have arrived before a layer can run, directly or not."""
    needs = np.zeros((len(job.layers), len(job.tensors)), dtype=bool)
    for t, tensor in enumerate(job.tensors):
        needs[list(tensor.layers), t] = True
    for index, layer in enumerate(job.layers):
        before = layer.after if layer.after is not None else range(max(0, index - 1), index)
        for earlier in before:
            needs[index] |= needs[earlier]
    return needs


def _pick_one_by_one(needs: Bools, compute_s: Floats, transfer_s: Floats) -> list[int]:
    outstanding = list(range(needs.shape[1]))
    order = []
    while outstanding:
        awaited = needs[:, outstanding]
        cost = transfer_s[outstanding]
        unlocked, shared = _properties(awaited, compute_s, cost)
        best = 0
        for other in range(1, len(outstanding)):
            first = min(unlocked[best], cost[other])
            second = min(unlocked[other], cost[best])
            if first < second or (first == second and shared[other] < shared[best]):
                best = other
        order.append(outstanding.pop(best))
    return order


def _properties(awaited: Bools, compute_s: Floats, cost: Floats) -> tuple[Floats, Floats]:
    """Return P, the computing that each receive alone unlocks, and M+, the least shared wait."""
    count = awaited.sum(axis=1)
    unlocked = (awaited & (count == 1)[:, None]).T.astype(np.float64) @ compute_s
    total = np.where(count > 1, awaited @ cost, np.inf)
    shared = np.where(awaited, total[:, None], np.inf).min(axis=0, initial=np.inf)
    return unlocked, shared
