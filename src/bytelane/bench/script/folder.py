"""The folder through which a launcher gives ranks their errand, and ranks report results."""

import mmap
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from bytelane.bench.script.trial import Errand, RankReport

COUNTER = struct.Struct("q")
# Of the output of a rank, no more than this is repeated.
LAST_BYTES = 1 << 16


class RunFolder:
    """The files of one run; launcher and ranks share only its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / "weights.pt"
        """Rank 0's final weights."""
        self._errand = path / "errand.json"
        self._steps = path / "steps"

    # --- the launcher's side -------------------------------------------------------------------

    def give(self, errand: Errand) -> None:
        self.path.mkdir()
        self._errand.write_bytes(msgspec.json.encode(errand))

    def steps(self) -> int:
        """Return how many steps rank 0 has made so far."""
        written = self._steps.read_bytes() if self._steps.exists() else b""
        return int(COUNTER.unpack(written)[0]) if written else 0

    def reports(self) -> list[RankReport]:
        """Return the reports of the ranks on this machine, the first to end first."""
        files = sorted(self.path.glob("rank-*.json"), key=lambda file: file.stat().st_mtime_ns)
        return [msgspec.json.decode(file.read_bytes(), type=RankReport) for file in files]

    def said(self, rank: int) -> tuple[str, str]:
        """Return the end of a rank's output: stdout and stderr."""
        out, err = (self._end_of(file) for file in self._outputs(rank))
        return out, err

    # --- a rank's side -------------------------------------------------------------------------

    def errand(self) -> Errand:
        return msgspec.json.decode(self._errand.read_bytes(), type=Errand)

    def redirect_output(self, rank: int) -> None:
        """Write the output of this process and its children to files here from now on."""
        for descriptor, path in enumerate(self._outputs(rank), start=1):
            with path.open("wb") as file:
                os.dup2(file.fileno(), descriptor)

    def step_counter(self) -> Callable[[int], None]:
        """Return a function that publishes the number of steps, at the cost of a memory write."""
        self._steps.write_bytes(COUNTER.pack(0))
        with self._steps.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), COUNTER.size)
        return partial(COUNTER.pack_into, memory, 0)

    def report(self, report: RankReport) -> None:
        part = self.path / f"rank-{report.rank}.part"
        part.write_bytes(msgspec.json.encode(report))
        part.rename(part.with_suffix(".json"))  # a report that exists is complete

    def _outputs(self, rank: int) -> tuple[Path, Path]:
        return self.path / f"rank-{rank}.out", self.path / f"rank-{rank}.err"

    @staticmethod
    def _end_of(path: Path) -> str:
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            return file.read().decode(errors="replace")
