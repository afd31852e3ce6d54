"""Start the ranks of an experiment on this machine, and see that all of them end."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from bytelane.bench.experiment import Experiment, Outcome
from bytelane.errors import TrainingError

Progress = Callable[[str], None]


def run_experiment(
    experiment: Experiment, *, timeout_s: float = 300.0, progress: Progress = lambda line: None
) -> list[Outcome]:
    """Run every contender on local ranks; return one outcome each."""
    with tempfile.TemporaryDirectory(prefix="bytelane-") as name:
        folder = Path(name)
        (folder / "experiment.json").write_bytes(msgspec.json.encode(experiment))
        with _ranks(folder, experiment.workers) as processes:
            _wait(processes, folder, time.monotonic() + timeout_s, progress)
        outcomes = (folder / "outcomes.json").read_bytes()
    return msgspec.json.decode(outcomes, type=list[Outcome])


@contextlib.contextmanager
def _ranks(folder: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    # Loopback by name: gloo would otherwise look up the host's own name, which need not resolve.
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = []
    try:
        for rank in range(count):
            with open(folder / f"rank{rank}.log", "wb") as log:
                command = [sys.executable, "-m", "bytelane.bench.rank", str(folder), str(rank)]
                processes.append(
                    subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
                )
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _wait(
    processes: list[subprocess.Popen[bytes]], folder: Path, deadline: float, progress: Progress
) -> None:
    """Return when all ranks have ended well; raise with the end of the log of one that has not."""
    while any(process.poll() is None for process in processes):
        for rank, process in enumerate(processes):
            if process.poll() not in (None, 0):
                raise TrainingError(f"rank {rank} failed: {_last_line(folder, rank)}")
        if time.monotonic() > deadline:
            raise TrainingError(f"the ranks did not finish in time; {_last_line(folder, 0)}")
        progress(_last_line(folder, 0))
        time.sleep(0.2)
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            raise TrainingError(f"rank {rank} failed: {_last_line(folder, rank)}")


def _last_line(folder: Path, rank: int) -> str:
    lines = (folder / f"rank{rank}.log").read_text(errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"
