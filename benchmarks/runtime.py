"""What the runtime itself costs: CPU time in our hooks, and over what computing alone takes.

    python benchmarks/runtime.py [--unit 1MiB] [--iterations 20]

Two ranks on loopback train ResNet-50's shape (25 MB, computing emulated for 0.42 s, as long as the
bytes would take at 500 Mbit/s): alone, under DDP with buckets of the same size, and under ours.

*In hooks* is the CPU time that passes between entering and leaving our code, in the training thread
(gradient hooks, gates, ``step()``, ``zero_grad()``, looks at tensors; without the user's own
optimizer, which we call) and in the threads that hear of the end of an operation.
"""

import argparse
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bytelane.api import find_job
from bytelane.bench import Conditions, scale_bytes
from bytelane.bench.launch import KEEP_MEMORY
from bytelane.bench.scale import scale_compute
from bytelane.bench.trainers import DdpTrainer, OurTrainer, PlainTrainer
from bytelane.bench.workload import Emulated
from bytelane.core import Knobs
from bytelane.runtime.sync import Engine
from bytelane.runtime.torch.access_guard import AccessGuard
from bytelane.runtime.torch.deferred_step import DeferredStep
from bytelane.runtime.torch.forward_pass import ForwardPass
from bytelane.runtime.torch.gradients import Gradients
from bytelane.runtime.torch.optimizer_steps import OptimizerSteps
from bytelane.runtime.torch.session import Session
from bytelane.sim import make_planner
from bytelane.units import format_bytes, parse_bytes

BYTES, COMPUTE_S = 25_000_000, 0.42
ENTRANCES = {
    Gradients: "complete land",
    ForwardPass: "enter_model enter_module leave_model",
    OptimizerSteps: "before_step before_zero_grad",
    Session: "after_step",
    AccessGuard: "look",
    Engine: "_finished",
}


def main() -> None:
    """Run the three, one after the other, in the same two processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unit", type=parse_bytes, default=2**20)
    parser.add_argument("--iterations", type=int, default=20)
    arguments = parser.parse_args()
    os.environ.update(KEEP_MEMORY)  # or computing alone would pay for its pages, and only it
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_main, (port, arguments.unit, arguments.iterations), nprocs=2)  # type: ignore[no-untyped-call]


def rank_main(rank: int, port: int, unit: int, iterations: int) -> None:
    """Train by all three, and let rank 0 tell."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    meter = Meter()
    job = scale_compute(scale_bytes(find_job(Path("resnet50")), BYTES), COMPUTE_S)
    planner = make_planner("units", Knobs(unit, 2 * unit))
    # Ours is made last: from then on looks at tensors are watched, which costs the others, too.
    trainers: dict[str, Callable[[Emulated], PlainTrainer]] = {
        "computing alone": PlainTrainer,
        f"DDP, {format_bytes(unit)} buckets": partial(DdpTrainer, bucket_bytes=unit),
        f"bytelane, {format_bytes(unit)} units": partial(
            OurTrainer, planner=planner, keep_iterations=2 * iterations
        ),
    }
    alone_s = None
    for name, make in trainers.items():
        trainer = make(Emulated(job, Conditions()))
        trainer.warm_up()
        dist.barrier()
        thread_s, process_s, began = time.thread_time(), time.process_time(), time.perf_counter()
        trainer.repeat(iterations)
        count = iterations + 1
        row = time.thread_time() - thread_s, time.process_time() - process_s
        thread_s, process_s = (seconds / count for seconds in row)
        iteration_s = (time.perf_counter() - began) / count
        alone_s = thread_s if alone_s is None else alone_s
        line = (
            f"{name:<24} training thread {1e3 * thread_s:5.1f} ms, process {1e3 * process_s:5.1f} "
            f"ms an iteration of {1e3 * iteration_s:.0f} ms; over computing alone "
            f"{100 * (thread_s - alone_s) / iteration_s:.1f} % of a core"
        )
        if isinstance(trainer, OurTrainer):  # again, since a meter costs too
            with meter:
                trainer.repeat(iterations)
            hooks_s, ends_s = (seconds / count for seconds in meter.spent_s)
            line += (
                f"; in hooks {1e3 * hooks_s:.1f} ms, hearing of ends {1e3 * ends_s:.1f} ms: "
                f"{100 * (hooks_s + ends_s) / iteration_s:.1f} %"
            )
        if rank == 0:
            print(line, flush=True)
    dist.barrier()
    dist.destroy_process_group()


class Meter:
    """Adds up the CPU time between entering and leaving our code, within a ``with``."""

    def __init__(self) -> None:
        """Be there before any hook is made: hooks hold on to what they call."""
        self.spent_s = [0.0, 0.0]
        """In the training thread, without what it calls of the user's; in all others."""
        self._is_on = False
        self._trainer = threading.get_ident()
        self._is_inside: set[int] = set()
        for owner, names in ENTRANCES.items():
            for name in names.split():
                setattr(owner, name, self._count(getattr(owner, name)))
        DeferredStep.step = self._leave_out(DeferredStep.step)  # type: ignore[method-assign]

    def __enter__(self) -> None:
        self._is_on = True

    def __exit__(self, *_: object) -> None:
        self._is_on = False

    def _count(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if not self._is_on or thread in self._is_inside:
                return function(*args, **kwargs)
            self._is_inside.add(thread)
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent_s[thread != self._trainer] += time.thread_time() - began
                self._is_inside.discard(thread)

        return counted

    def _leave_out(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def left_out(*args: Any, **kwargs: Any) -> None:
            began = time.thread_time()
            function(*args, **kwargs)
            if threading.get_ident() in self._is_inside:
                self.spent_s[0] -= time.thread_time() - began

        return left_out


if __name__ == "__main__":
    main()
