"""Real processes with a real process group, kept alive between tests.

A hang is a failure: a case that does not answer in time is ended, with all its processes, and the
next case gets new ones.
"""

import multiprocessing as mp
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0


class RankFailed(Exception):
    """A case raised on some rank; the message holds that rank's traceback."""


class Pool:
    """``run`` calls one function on every rank and returns what each of them returned."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def run(self, case: Callable[..., Any], /, **arguments: Any) -> list[Any]:
        """Run ``case(rank, **arguments)`` everywhere; raise if it fails or hangs anywhere."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((case, arguments))
        answers = self._collect()
        failed = [f"rank {r}:\n{text}" for r, (ok, text) in answers.items() if not ok]
        if failed or len(answers) < self.world:
            self._end()  # a process group that has seen an error is unusable
            missing = sorted(set(range(self.world)) - set(answers))
            hung = [f"rank {r} did not answer in {TIMEOUT_S:g} s" for r in missing]
            raise RankFailed("\n".join(failed + hung))
        return [answers[rank][1] for rank in range(self.world)]

    def _collect(self) -> dict[int, tuple[bool, Any]]:
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < self.world:
            open_pipes = [p for r, p in enumerate(self._pipes) if r not in answers]
            ready = wait(open_pipes, TIMEOUT_S)
            if not ready:
                return answers
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    answers[rank] = self._pipes[rank].recv()
                except EOFError:
                    answers[rank] = (False, "the process died")
        return answers

    def _start(self) -> None:
        context = mp.get_context("spawn")
        folder = Path(tempfile.mkdtemp(prefix="bytelane-test-"))
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.world, folder, theirs))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _end(self) -> None:
        for pipe in self._pipes:
            pipe.close()  # a rank that is well ends by itself, and writes down its coverage
        for process in self._processes:
            process.join(timeout=5)
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


def _serve(rank: int, world: int, folder: Path, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    while True:
        try:
            case, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, case(rank, **arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
