"""Measure the network between local ranks, over the loopback device."""

import os
import tempfile
import time
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from bytelane.errors import InputError, TrainingError
from bytelane.lab import open_sockets, pace
from bytelane.lifetime import end_with_parent, scratch_folder
from bytelane.measure.network import NetworkProfile, profile_network
from bytelane.measure.patches import replaced

LIMIT_S = 300.0


def profile_loopback(workers: int, rate: float | None, budget_s: float) -> NetworkProfile:
    """Start local ranks, and measure; ``rate`` slows their connections down."""
    if not 2 <= workers <= 64:
        raise InputError(f"{workers} workers cannot be measured on one machine; use 2 to 64")
    with scratch_folder() as folder:
        arguments = (workers, str(folder), rate, budget_s)
        # A rank's error comes as a pickle in a temporary file, which other users must not write.
        with replaced(tempfile, "tempdir", str(folder)):
            ranks = start_processes(  # type: ignore[no-untyped-call]
                _rank, arguments, workers, join=False, daemon=True
            )
        try:
            _wait(ranks, time.monotonic() + LIMIT_S)
        finally:
            for process in ranks.processes:
                process.kill()
        return msgspec.json.decode((folder / "found.json").read_bytes(), type=NetworkProfile)


def _wait(ranks: ProcessContext, deadline: float) -> None:
    try:
        while not ranks.join(timeout=1):
            if time.monotonic() > deadline:
                raise TrainingError(f"the ranks did not finish within {LIMIT_S:g} s")
    except (ProcessRaisedException, ProcessExitedException) as error:
        raise TrainingError(f"a rank failed: {str(error).strip().splitlines()[-1]}") from None


def _rank(rank: int, workers: int, folder: str, rate: float | None, budget_s: float) -> None:
    end_with_parent()
    # By name: gloo would otherwise look up the host's own name, which need not resolve.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    before = open_sockets()
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=workers)
    dist.barrier()  # connects
    if rate is not None:
        pace(open_sockets() - before, rate)
    group = dist.group.WORLD
    assert group is not None
    found = profile_network(group, budget_s)
    if rank == 0:
        (Path(folder) / "found.json").write_bytes(msgspec.json.encode(found))
    dist.barrier()
    dist.destroy_process_group()
