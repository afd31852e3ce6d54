"""What the runtime itself costs: CPU time of the training thread, and of hearing of ends.

    python benchmarks/runtime.py [--unit 1MiB] [--iterations 20]

Two ranks on loopback train ResNet-50's shape (25 MB, computing emulated for 0.42 s, as long as the
bytes would take at 500 Mbit/s): alone, under DDP with buckets of the same size, and under ours.
"""

import argparse
import os
import socket
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
from bytelane.bench.scale import scale_compute
from bytelane.bench.trainers import DdpTrainer, OurTrainer, PlainTrainer
from bytelane.bench.workload import Emulated
from bytelane.core import Knobs
from bytelane.runtime.engine import Engine
from bytelane.sim import make_planner
from bytelane.units import format_bytes, parse_bytes

BYTES, COMPUTE_S = 25_000_000, 0.42


def main() -> None:
    """Run the three, one after the other, in the same two processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unit", type=parse_bytes, default=2**20)
    parser.add_argument("--iterations", type=int, default=20)
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_main, (port, arguments.unit, arguments.iterations), nprocs=2)  # type: ignore[no-untyped-call]


def rank_main(rank: int, port: int, unit: int, iterations: int) -> None:
    """Train by all three, and let rank 0 tell."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    told_s = count_ends()
    job = scale_compute(scale_bytes(find_job(Path("resnet50")), BYTES), COMPUTE_S)
    planner = make_planner("units", Knobs(unit, 2 * unit))
    # Ours is made last: from then on looks at tensors are watched, which costs the others, too.
    trainers: dict[str, Callable[[Emulated], PlainTrainer]] = {
        "computing alone": PlainTrainer,
        f"DDP, {format_bytes(unit)} buckets": partial(DdpTrainer, bucket_bytes=unit),
        f"bytelane, {format_bytes(unit)} units": partial(
            OurTrainer, planner=planner, keep_iterations=iterations
        ),
    }
    alone_s = None
    for name, make in trainers.items():
        trainer = make(Emulated(job, Conditions()))
        trainer.warm_up()
        dist.barrier()
        told_s[0] = 0.0
        thread_s, process_s, began = time.thread_time(), time.process_time(), time.perf_counter()
        trainer.repeat(iterations)
        count = iterations + 1
        row = [time.thread_time() - thread_s, told_s[0], time.process_time() - process_s]
        thread_s, ends_s, process_s = (seconds / count for seconds in row)
        iteration_s = (time.perf_counter() - began) / count
        alone_s = thread_s if alone_s is None else alone_s
        own = thread_s - alone_s + ends_s
        if rank == 0:
            print(
                f"{name:<24} thread {1e3 * thread_s:6.1f} ms, ends {1e3 * ends_s:5.1f} ms, "
                f"process {1e3 * process_s:6.1f} ms an iteration of {1e3 * iteration_s:.0f} ms; "
                f"over computing alone {100 * own / iteration_s:.1f} % of a core",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


def count_ends() -> list[float]:
    """Add up the CPU time of the threads that hear of the end of an operation."""
    spent_s = [0.0]
    honest = Engine._finished

    def finished(self: Engine, *arguments: Any) -> None:
        began = time.thread_time()
        honest(self, *arguments)
        spent_s[0] += time.thread_time() - began

    Engine._finished = finished  # type: ignore[method-assign]
    return spent_s


if __name__ == "__main__":
    main()
