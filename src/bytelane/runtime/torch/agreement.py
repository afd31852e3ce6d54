"""Agreement between ranks: share a plan, compare models and weights, copy tensors from a rank.

Everything travels as bytes in tensors: ``broadcast_object_list`` is pickle. An unnoticed difference
would be silent corruption later, so it is an error on *every* rank, which names the rank.
"""

import hashlib
import zlib
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from bytelane.core import Plan
from bytelane.errors import NotSupported, PlanMismatch, WeightsDiffer
from bytelane.runtime.torch.control import Control


def require_equal(what: str, text: str, control: Control) -> None:
    """Raise on every rank if this text is not the same on all of them."""
    digest = hashlib.sha256(text.encode()).digest()
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    everyone = control.all_gather(mine)
    odd = [rank for rank, other in enumerate(everyone) if not torch.equal(other, everyone[0])]
    if odd:
        raise PlanMismatch(
            f"{what} differs between ranks: rank {odd[0]} does not agree with rank 0"
        )


def share_plan(plan: Plan | None, control: Control) -> Plan:
    """Broadcast rank 0's plan, and verify that all ranks hold the same one."""
    data = bytes_from(0, b"" if plan is None else plan.encode(), control)
    if not data:
        raise PlanMismatch("rank 0 could not make a plan; its own message says why")
    agreed = Plan.decode(data)
    require_equal("the plan", agreed.digest, control)
    return agreed


def slowest(cumulative_s: list[float], control: Control) -> list[float]:
    """Return, for each moment of an iteration, when the slowest rank reaches it."""
    times = torch.tensor(cumulative_s, dtype=torch.float64)
    control.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def mean(value: Any, control: Control) -> Any:
    """Return the mean of a number over all ranks, as a tensor if it was one."""
    total = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    control.all_reduce(total, dist.ReduceOp.SUM)
    result = total / control.size
    return result.to(value.dtype) if isinstance(value, torch.Tensor) else result.item()


def copy_from(rank: int, tensors: list[torch.Tensor], control: Control) -> None:
    """Overwrite these tensors with one rank's.

    They travel as bytes in one piece: gloo supports neither all dtypes nor tensors with gaps.
    """
    dense = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    if not dense:
        return
    payload = torch.cat(dense)
    control.broadcast(payload, rank)
    begin = 0
    for tensor, old in zip(tensors, dense, strict=True):
        new = payload[begin : begin + old.numel()]
        begin += old.numel()
        if not torch.equal(old, new):
            tensor.copy_(new.clone().view(tensor.dtype).view(tensor.shape))


def require_equal_weights(model: torch.nn.Module, control: Control) -> None:
    """Raise on every rank if any parameter is not the same on all of them, to the last bit."""
    names = [name for name, _ in model.named_parameters()]
    mine = torch.tensor([_checksum(p) for p in model.parameters()], dtype=torch.int64)
    everyone = control.all_gather(mine)
    for rank, other in enumerate(everyone):
        odd = (other != everyone[0]).nonzero()
        if len(odd):
            raise WeightsDiffer(
                f"{names[int(odd[0])]} differs between ranks: rank {rank} does not hold what rank "
                f"0 holds ({len(odd)} of {len(names)} tensors differ)"
            )


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)


def names_from_first(names: list[str], control: Control) -> list[str]:
    """Return rank 0's list of names on every rank."""
    return msgspec.json.decode(bytes_from(0, msgspec.json.encode(names), control), type=list[str])


def refuse_together(problem: str, control: Control) -> None:
    """Raise on every rank the problem of the first rank that has one; an empty text is none."""
    lengths = control.all_gather(torch.tensor([len(problem)]))
    for rank, length in enumerate(lengths):
        if length:
            text = bytes_from(rank, problem.encode(), control).decode()
            raise NotSupported(text if rank == control.rank else f"rank {rank}: {text}")


def bytes_from(rank: int, data: bytes, control: Control) -> bytes:
    """Return one rank's bytes on every rank."""
    length = torch.tensor([len(data)])
    control.broadcast(length, rank)
    if not length:
        return b""
    mine = bytearray(data if control.rank == rank else int(length))
    control.broadcast(torch.frombuffer(mine, dtype=torch.uint8), rank)
    return bytes(mine)
