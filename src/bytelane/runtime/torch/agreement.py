"""Agree among ranks before anything depends on it.

Everything travels as bytes in tensors: ``broadcast_object_list`` is pickle. A wrong agreement would
be silent corruption later, so a difference is an error on *every* rank, and it names the others.
"""

import hashlib

import msgspec
import torch
import torch.distributed as dist

from bytelane.core import Plan
from bytelane.errors import NotSupported, PlanMismatch


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
    data = bytes_from(0, b"" if plan is None else plan.encode(), group)
    if not data:
        raise PlanMismatch("rank 0 could not make a plan; its own message says why")
    agreed = Plan.decode(data)
    require_equal("the plan", agreed.digest, group)
    return agreed


def slowest(cumulative_s: list[float], group: dist.ProcessGroup) -> list[float]:
    """Return, for each moment of an iteration, when the slowest rank reaches it."""
    times = torch.tensor(cumulative_s, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    return times.tolist()


def copy_from_first(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Overwrite these tensors with rank 0's.

    They travel as bytes in one piece: gloo knows neither all dtypes nor tensors with gaps.
    """
    dense = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    payload = torch.cat(dense)
    dist.broadcast(payload, group_src=0, group=group)
    begin = 0
    for tensor, old in zip(tensors, dense, strict=True):
        new = payload[begin : begin + old.numel()]
        begin += old.numel()
        if not torch.equal(old, new):
            tensor.copy_(new.clone().view(tensor.dtype).view(tensor.shape))


def names_from_first(names: list[str], group: dist.ProcessGroup) -> list[str]:
    """Return rank 0's list of names on every rank."""
    return msgspec.json.decode(bytes_from(0, msgspec.json.encode(names), group), type=list[str])


def refuse_together(problem: str, group: dist.ProcessGroup) -> None:
    """Raise on every rank what the first rank with a problem has to say; an empty text is none."""
    lengths = [torch.empty(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(lengths, torch.tensor([len(problem)]), group=group)
    for rank, length in enumerate(lengths):
        if length:
            text = bytes_from(rank, problem.encode(), group).decode()
            raise NotSupported(text if rank == group.rank() else f"rank {rank}: {text}")


def bytes_from(rank: int, data: bytes, group: dist.ProcessGroup) -> bytes:
    """Return one rank's bytes on every rank."""
    length = torch.tensor([len(data)])
    dist.broadcast(length, group_src=rank, group=group)
    if not length:
        return b""
    mine = bytearray(data if group.rank() == rank else int(length))
    dist.broadcast(torch.frombuffer(mine, dtype=torch.uint8), group_src=rank, group=group)
    return bytes(mine)
