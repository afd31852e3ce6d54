"""Start the ranks of a run in a lab, or with torchrun on existing machines."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from bytelane.errors import InputError
from bytelane.lab import Lab
from bytelane.lab.linux import die_with_parent
from bytelane.units import format_rate
from bytelane.values import shown

# How long torchrun waits for its workers before it kills them, and a little more.
ENDING_S = 40.0
MOST_RANKS = 1024
PROGRAM = "program"
# Names have the same hashes in all runs, so that sets of them have the same order.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}


class Running(Protocol):
    """A run under way."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs, 0 if all ranks have ended well."""
        ...

    def stop(self) -> None: ...


class Place(Protocol):
    """Starts one rank on every worker."""

    @property
    def title(self) -> str: ...

    def start(self, folder: Path) -> Running: ...


class InLab(NamedTuple):
    """The hosts of an open lab."""

    lab: Lab

    @property
    def title(self) -> str:
        return f"{self.lab.workers} workers, {format_rate(self.lab.rates[0])} ({self.lab.mode} lab)"

    def start(self, folder: Path) -> Running:
        return self.lab.start(_program(folder), environment=ENVIRONMENT)


class Here:
    """torchrun on this machine, and on all others on which the same command is given."""

    def __init__(self, workers: int, options: str = "--standalone") -> None:
        if workers < 1:
            raise InputError(f"{workers} workers are too few; use 1 or more on every machine")
        if workers > MOST_RANKS:
            raise InputError(
                f"{shown(workers)} workers are too many for a machine; at most {MOST_RANKS} will do"
            )
        try:
            self._options = [*shlex.split(options), "--nproc-per-node", str(workers)]
        except ValueError as error:
            raise InputError(f"torchrun's options {options!r} cannot be read: {error}") from None
        _require_known(self._options)

    @property
    def title(self) -> str:
        return f"no lab, torchrun {shlex.join(self._options)}"

    def start(self, folder: Path) -> Running:
        # -P as below. Its log files go into our folder, unless the options say otherwise.
        torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--log-dir", str(folder)]
        command = [*torchrun, *self._options, "--no-python", *_program(folder)]
        return _TorchRun(command, folder / "torchrun.log")


def _require_known(options: list[str]) -> None:
    """Refuse options that torchrun would, before it is started."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise InputError(f"torchrun does not take {shlex.join(options)}: {message}")

    parser.error = refuse  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parsed = parser.parse_args([*options, "--no-python", PROGRAM])
    except SystemExit:  # as after --help
        refuse("it would not start anything")
    if parsed.training_script != PROGRAM or parsed.training_script_args:
        refuse("bytelane try itself names the program to start")


class _TorchRun:
    def __init__(self, command: list[str], log: Path) -> None:
        # Ranks end with our process by themselves; torchrun must, too, before it has started them.
        before_exec = die_with_parent if sys.platform.startswith("linux") else None
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={"OMP_NUM_THREADS": "1", **os.environ, **ENVIRONMENT},
                start_new_session=True,  # Ctrl-C reaches only us; stop() passes it on
                preexec_fn=before_exec,
            )

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _program(folder: Path) -> list[str]:
    # -P: no modules from the current folder, as for any script.
    return [sys.executable, "-P", "-m", "bytelane.bench.script.rank", str(folder)]
