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
from typing import Any

TIMEOUT_S = 60.0
# Once a rank has failed, the others may be waiting for it, or are about to say more.
GRACE_S = 3.0


class RankFailed(Exception):
    """A case raised on some rank; the message holds that rank's traceback."""


class Pool:
    """``run`` calls one function on every rank and returns what each of them returned."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def run(self, case: Callable[..., Any], /, **arguments: Any) -> list[Any]:
        """Run ``case(rank, **arguments)`` everywhere; raise if it fails or hangs anywhere."""
        if not self._processes:
            self._start()
        if dead := [r for r, process in enumerate(self._processes) if not process.is_alive()]:
            self._end()
            raise RankFailed(f"ranks {dead} died after the case before this one")
        for pipe in self._pipes:
            pipe.send((case, arguments))
        answers = self._collect()
        failed = [f"rank {r}:\n{text}" for r, (ok, text) in answers.items() if not ok]
        if failed or len(answers) < self.world:
            self._end()  # a process group that has seen an error is unusable
            missing = sorted(set(range(self.world)) - set(answers))
            patience_s = GRACE_S if failed else TIMEOUT_S
            hung = [f"rank {r} did not answer in {patience_s:g} s" for r in missing]
            raise RankFailed("\n".join(failed + hung))
        return [answers[rank][1] for rank in range(self.world)]

    def _collect(self) -> dict[int, tuple[bool, Any]]:
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < self.world:
            open_pipes = [p for r, p in enumerate(self._pipes) if r not in answers]
            all_well = all(ok for ok, _ in answers.values())
            ready = wait(open_pipes, TIMEOUT_S if all_well else GRACE_S)
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
        self._folder = tempfile.TemporaryDirectory(prefix="bytelane-test-")
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            arguments = (rank, self.world, self._folder.name, theirs)
            process = context.Process(target=_serve, args=arguments)
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
        if self._folder is not None:
            self._folder.cleanup()


def _serve(rank: int, world: int, folder: str, pipe: Connection) -> None:
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
