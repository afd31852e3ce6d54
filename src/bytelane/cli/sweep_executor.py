"""Run a sweep in this process, in one process per core, or on a Dask cluster."""

import contextlib
import logging
import multiprocessing
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker

from bytelane.errors import BytelaneError, InputError, MissingExtra
from bytelane.lifetime import end_with_parent
from bytelane.sim.sweep import Answer, WhatIf, sweep

# A new process needs about 1 s to load compiled code. So a sweep begins in this process, and other
# processes join as soon as more than this is estimated to be left.
WORTH_SHARING_S = 4.0
CONNECT_S = 4.0
DASK = "dask://"


def run_sweep(
    settings: Sequence[WhatIf], executor: str, progress: Callable[[int], None]
) -> list[Answer]:
    """Simulate all settings; after each, call ``progress`` with the number done."""
    answers: list[Answer] = []
    with contextlib.closing(_answers(settings, executor)) as found:  # whatever ends the loop
        for answer in found:
            answers.append(answer)
            progress(len(answers))
    return answers


def require_executor(name: str) -> None:
    """Refuse an unknown executor."""
    if name not in ("auto", "serial", "processes") and not re.fullmatch(rf"{DASK}.+:\d+", name):
        raise InputError(
            f"there is no executor {name!r}; use auto, serial, processes or dask://HOST:PORT"
        )


def _answers(settings: Sequence[WhatIf], executor: str) -> Generator[Answer]:
    if executor == "serial":
        yield from sweep(settings)
    elif executor.startswith(DASK):
        with _dask_cluster(executor.removeprefix(DASK)) as cluster:
            yield from sweep(settings, cluster)
    else:
        yield from _on_all_cores(settings, always=executor == "processes")


def _on_all_cores(settings: Sequence[WhatIf], always: bool) -> Iterator[Answer]:
    """Begin in this process: the first answers give an estimate, and leave code compiled."""
    cores = len(os.sched_getaffinity(0))
    first_s, done = 0.0, 0
    for done, answer in enumerate(sweep(settings), start=1):
        yield answer
        first_s = first_s or time.monotonic()
        left_s = (time.monotonic() - first_s) / done * (len(settings) - done)
        if always or (cores > 1 and left_s > WORTH_SHARING_S):
            break
    if done < len(settings):
        with _processes(cores) as pool:
            yield from sweep(settings[done:], pool)


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Executor]:
    """Start processes; if anything goes wrong, end them at once."""
    others = set(multiprocessing.active_children())
    # Not forked: a process that is forked while threads run may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, initializer=end_with_parent)
    try:
        with _interrupts_held():
            for _ in range(count):
                pool.submit(os.getpid)
        yield pool
    except BaseException as error:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()  # or its present simulation would have to end first
        if isinstance(error, BrokenProcessPool):
            raise BytelaneError(
                "a process of the sweep was killed, perhaps because memory ran out"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Defer Ctrl-C while processes start, so that they start with SIGINT blocked."""
    resource_tracker.ensure_running()  # when it starts, it lifts the mask
    held: list[int] = []
    # Processes inherit the mask; but here a thread of some library may take the signal instead.
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if held:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _dask_cluster(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtra(
            "a Dask cluster needs distributed; install it with: pip install 'bytelane[dask]'"
        ) from None
    _require_scheduler(address)
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it prints tracebacks
    try:
        with Client(  # type: ignore[no-untyped-call]
            f"tcp://{address}", timeout=CONNECT_S, set_as_default=False
        ) as client:
            if not client.nthreads():
                raise InputError(
                    f"the Dask scheduler at {address} has no workers; "
                    f"start some with: dask worker {address}"
                )
            yield client.get_executor(pure=False)
    except BytelaneError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise BytelaneError(f"the Dask cluster at {address} failed with {why}") from None


def _require_scheduler(address: str) -> None:
    """Check that a Dask scheduler answers: the client would wait long for anything else."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as connection:
            # A scheduler speaks first: eight bytes with the length of its greeting.
            length = int.from_bytes(connection.makefile("rb").read(8), "little")
    except (OSError, OverflowError):
        length = 0
    if not 0 < length < 2**20:
        raise InputError(f"found no Dask scheduler at {address}; start one with: dask scheduler")
