"""Agree among ranks before anything depends on it.

Everything travels as bytes in tensors: ``broadcast_object_list`` is pickle. A wrong agreement would
be silent corruption later, so a difference is an error on *every* rank, and it names the others.
"""

import hashlib

import torch
import torch.distributed as dist

from bytelane.core import Plan
from bytelane.errors import PlanMismatch


def require_equal(what: str, text: str, group: dist.ProcessGroup) -> None:
    """Raise on every rank if this text is not the same on all of them."""
    digest = hashlib.sha256(text.encode()).digest()
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    everyone = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(everyone, mine, group=group)
    odd = [rank for rank, other in enumerate(everyone) if not torch.equal(other, everyone[0])]
    if odd:
        raise PlanMismatch(
            f"{what} differs between ranks: rank {odd[0]} does not agree with rank 0"
        )


def share_plan(plan: Plan | None, group: dist.ProcessGroup) -> Plan:
    """Give rank 0's plan to every rank, and make sure that all of them hold the same one."""
    data = bytearray(plan.encode() if plan is not None else b"")
    length = torch.tensor([len(data)])
    dist.broadcast(length, group_src=0, group=group)
    if not length:
        raise PlanMismatch("rank 0 could not make a plan; its own message says why")
    if plan is None:
        data = bytearray(int(length))
    payload = torch.frombuffer(data, dtype=torch.uint8)
    dist.broadcast(payload, group_src=0, group=group)
    agreed = Plan.decode(payload.numpy().tobytes())
    require_equal("the plan", agreed.digest, group)
    return agreed


def slowest(cumulative_s: list[float], group: dist.ProcessGroup) -> list[float]:
    """Return, for each moment of an iteration, when the slowest rank reaches it."""
    times = torch.tensor(cumulative_s, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    return times.tolist()


def copy_from_first(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Overwrite these tensors with rank 0's."""
    for tensor in tensors:
        dist.broadcast(tensor, group_src=0, group=group)
