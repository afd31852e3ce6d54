"""Run an experiment on the hosts of a lab."""

import sys
from collections import deque
from collections.abc import Callable

import msgspec

from bytelane.bench.experiment import ALL_ARE_WARM, LINKS_HAVE_DROPPED, Experiment, Result
from bytelane.errors import LabTimeout, TrainingError
from bytelane.lab import Lab
from bytelane.lifetime import scratch_folder

Progress = Callable[[str], None]
LAST_WORDS = 200
# All ranks share the cores of this machine. Returning large blocks to the system and getting them
# again, page by page, would cost every contender more than the emulated gradients themselves.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


def run_experiment(
    experiment: Experiment,
    lab: Lab,
    *,
    timeout_s: float = 900.0,
    progress: Progress = lambda line: None,
) -> Result:
    """Run every contender on every host of an open lab."""
    last_words: dict[int, deque[str]] = {
        rank: deque(maxlen=LAST_WORDS) for rank in range(experiment.workers)
    }

    def listen(rank: int, stream: str, line: str) -> None:
        last_words[rank].append(line)
        if rank == 0 and stream == "out":
            progress(line)
            if line == ALL_ARE_WARM:
                lab.set_rate(lab.rates[0] * (1 - experiment.drop))
                (folder / LINKS_HAVE_DROPPED).touch()

    with scratch_folder() as folder:
        (folder / "experiment.json").write_bytes(msgspec.json.encode(experiment))
        # -P: modules in the current folder must not shadow others.
        command = [sys.executable, "-P", "-m", "bytelane.bench.rank", str(folder)]
        run = lab.start(command, environment=KEEP_MEMORY, output=listen)
        try:
            code = run.wait(timeout_s)
        except LabTimeout:
            raise TrainingError(
                f"the ranks did not finish within {timeout_s:g} s; {_last(last_words[0])}"
            ) from None
        if code:
            rank = next(rank for rank, ended in run.codes.items() if ended)
            raise TrainingError(f"rank {rank} failed: {_last(last_words[rank])}")
        return msgspec.json.decode((folder / "result.json").read_bytes(), type=Result)


def _last(lines: deque[str]) -> str:
    return lines[-1] if lines else "it printed nothing"
