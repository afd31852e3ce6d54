"""Ranks that are hurt in the middle of training, and what becomes of the others."""

import json
import multiprocessing as mp
import os
import resource
import signal
import sys
import time
import zlib
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import bytelane
from bytelane.errors import TrainingError
from bytelane.runtime.torch import session_of
from training import loss_of, make

PARTS: dict[str, Any] = {"policy": "bytescheduler", "partition": "1KiB", "credit": "2KiB"}
HALVES: dict[str, Any] = {"policy": "dear", "fusion": "4KiB"}
WHOLE: dict[str, Any] = {"policy": "fifo"}
STEPS = 2000
PAUSE_S = 0.005
END_S = 60.0
# A moment is the number of a call of a hook: forward of 6 modules, then 8 gradients.
MOMENTS_IN_A_STEP = 14


class Bang(Exception):
    """What the user's own code raises."""


@dataclass(frozen=True)
class Report:
    """How one rank has ended."""

    error: str
    peer: int | None
    message: str
    note: str
    weights: list[int]
    """A checksum of each parameter."""
    at_s: float


@dataclass(frozen=True)
class Outcome:
    """How all have ended; the last rank is the one that was hurt."""

    survivors: list[Report]
    hurt_at_s: float
    left_over: int
    """Processes that were still there after everybody should have ended."""


def run_fault(
    fault: str,
    moment: int,
    folder: Path,
    *,
    world: int = 2,
    knobs: dict[str, Any] = PARTS,
    model: str = "chain",
) -> Outcome:
    """Train, hurt the last rank at some call of a hook, and wait for what the others say."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "bytelane.runtime.torch", "training"])
    ranks = [
        context.Process(target=_train, args=(rank, world, folder, knobs, model, fault, moment))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + END_S
    for process in ranks[:-1]:
        process.join(max(0.1, deadline - time.monotonic()))
    left_over = sum(process.is_alive() for process in ranks[:-1])
    _end(ranks)
    survivors = [
        Report(**json.loads((folder / f"report{rank}").read_text()))
        for rank in range(world - 1)
        if (folder / f"report{rank}").exists()
    ]
    return Outcome(survivors, float((folder / "hurt").read_text()), left_over)


def _end(ranks: list[BaseProcess]) -> None:
    for process in ranks:
        process.kill()
        process.join()


def expected_weights(steps: int, world: int = 2, model: str = "chain") -> list[list[int]]:
    """Train all ranks in one process: the checksums after each step, to the last bit on two."""
    torch.set_num_threads(1)  # as the ranks: another number rounds otherwise
    net, opt = make(model)
    found = [checksums(net)]
    for step in range(steps):
        total: list[Any] = []
        for rank in range(world):
            opt.zero_grad()
            loss_of(net, rank, step).backward()
            mine = [p.grad * (1.0 / world) for p in net.parameters()]
            total = [a + b for a, b in zip(total, mine, strict=True)] if total else mine
        for parameter, gradient in zip(net.parameters(), total, strict=True):
            parameter.grad = gradient
        opt.step()
        found.append(checksums(net))
    return found


def checksums(net: torch.nn.Module) -> list[int]:
    return [zlib.crc32(p.detach().numpy().tobytes()) for p in net.parameters()]


def _train(
    rank: int,
    world: int,
    folder: Path,
    knobs: dict[str, Any],
    model: str,
    fault: str,
    moment: int,
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    sys.stdout = sys.stderr = (folder / f"output{rank}").open("w")  # type: ignore[assignment]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    net, opt = make(model)
    bytelane.prepare(net, opt, timeout_s=END_S, **knobs)
    if rank == world - 1:
        _be_hurt(net, opt, fault, moment, folder)
    error: BaseException | None = None
    try:
        for step in range(STEPS):
            opt.zero_grad()
            loss_of(net, rank, step).backward()
            opt.step()
            time.sleep(PAUSE_S)
    except TrainingError as raised:
        error = raised
    # Checksums of large weights take memory, too, and dying of that is another fault.
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with session_of(net).guard.looking_away():
        weights = checksums(net)
    report = {
        "error": type(error).__name__,
        "peer": getattr(error, "rank", None),
        "message": str(error),
        "note": " ".join(getattr(error, "__notes__", [])),
        "weights": weights,
        "at_s": time.time(),
    }
    (folder / f"report{rank}").write_text(json.dumps(report))
    if error is not None:
        raise error


def _be_hurt(net: Any, opt: Any, fault: str, moment: int, folder: Path) -> None:
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == moment:
            (folder / "hurt").write_text(str(time.time()))
            _hurt(fault)

    if fault == "raise in the optimizer":
        opt.register_step_pre_hook(count)
        return
    if fault == "run out of memory":  # when its gradient is there, and is about to be sent
        net.wide.register_hook(count)
        return
    for module in net:
        module.register_forward_pre_hook(count)
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(count)


def _hurt(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "leave":
        sys.exit(0)
    elif fault == "run out of memory":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    else:
        raise Bang(fault)
