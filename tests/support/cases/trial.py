"""Run one case by all arms on one rank, and judge what all ranks report."""

import contextlib
import gc
import io
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from bytelane.errors import NotSupported
from cases.arms import Arm, Ddp, Ours
from cases.compare import Values, differences, digest
from cases.probe import Probe
from cases.registry import CASES, Case, run

# A case that waits costs the short time; one that should not, but does, costs the long one.
SHORT_S, LONG_S = 0.15, 10.0


@dataclass(frozen=True)
class Report:
    """What one rank has found."""

    unlike_ddp: list[str]
    unlike_barrier: list[str]
    unlike_alone: list[str]
    ours_everywhere: str
    ddp_everywhere: str
    waits: bool | None
    said: str


def report(rank: int, title: str, way: str, key: str, sync: str = "allreduce") -> Report:
    """Train by DDP, by us, on more than two ranks by us with a barrier, and alone."""
    entry, world = CASES[title], dist.get_world_size()
    probe = Probe(rank, world, key, SHORT_S if entry.outcome == "barrier" else LONG_S)
    ddp = train(title, way, Ddp(rank, world))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        ours = train(title, way, Ours(rank, world, probe if entry.probed else None, sync=sync))
    rounds = world > 2 or entry.outcome == "rounded"
    rounding = getattr(torch, entry.rounding) if rounds else None
    return Report(
        differences(ours, ddp, rounding),
        differences(ours, _with_barrier(title, way, rank, world, sync)) if world > 2 else [],
        differences(train(title, way, Arm(rank, world)), ddp),
        digest(ours),
        digest(ddp),
        probe.waits,
        said.getvalue(),
    )


def _with_barrier(title: str, way: str, rank: int, world: int, sync: str) -> Values:
    with contextlib.redirect_stdout(io.StringIO()):
        return train(title, way, Ours(rank, world, barrier=True, sync=sync))


def refusal(rank: int, title: str, way: str, sync: str = "allreduce") -> tuple[str, bool]:
    """Return the sentence with which our arm refuses, and whether it came before training."""
    arm = Ours(rank, dist.get_world_size(), sync=sync)
    try:
        train(title, way, arm)
    except NotSupported as error:
        return str(error), not arm.prepared
    return "accepted", False


def train(title: str, way: str, arm: Arm) -> Values:
    """Run a case by one arm, from the same random state as by any other."""
    torch.manual_seed(7)
    try:
        return run(title, way, arm)
    finally:
        drop_models()


def drop_models() -> None:
    """Let go of the sockets and threads of models; what stays is not looked through again."""
    gc.collect()
    gc.freeze()


def complaints(entry: Case, reports: list[Report]) -> list[str]:
    """Say what is wrong with a case; the first half is about the case itself."""
    return list(_complaints(entry, reports))


def _complaints(entry: Case, reports: list[Report]) -> Iterator[str]:
    if len({r.ddp_everywhere for r in reports}) > 1:
        yield "DDP's ranks do not agree: the case gives them nothing to agree on"
    if entry.synchronises and not all(r.unlike_alone for r in reports):
        yield "training alone gives the same, so the case shows nothing"
    for rank, found in enumerate(reports):
        yield from (f"rank {rank}, unlike DDP: {text}" for text in found.unlike_ddp)
        yield from (f"rank {rank}, unlike a barrier: {text}" for text in found.unlike_barrier)
    if len({r.ours_everywhere for r in reports}) > 1:
        yield "our ranks do not agree with each other"
    if entry.outcome != "servers" and entry.says not in reports[0].said:
        yield f"it does not say {entry.says!r} but {reports[0].said!r}"
    if entry.probed and reports[-1].waits is not (entry.outcome == "barrier"):
        yield f"step() waits for the other ranks: {reports[-1].waits}; the table says otherwise"
