"""Change link rates while a command runs, by a schedule from a file."""

import csv
import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bytelane.errors import InputError
from bytelane.files import parse_toml, read_text
from bytelane.units import LONGEST_S, parse_rate
from bytelane.values import as_number, shown


class Step(msgspec.Struct, frozen=True):
    """A new rate of one host's link, or of all links, from a moment on."""

    at_s: float
    rate: float
    """Bytes per second."""
    host: int | None = None
    """None: all."""

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.at_s, "at_s") <= LONGEST_S:
            raise InputError(
                f"at_s is {self.at_s}; a step must be at 0 seconds or later, and at "
                f"{LONGEST_S:g} seconds at the latest"
            )


def load_schedule(path: Path, hosts: int) -> tuple[Step, ...]:
    """Read a schedule, in the order of time.

    TOML: ``[[step]]`` with ``at_s``, ``rate`` and perhaps ``host``. CSV: a line with those names,
    then one line per step; an empty host means all.
    """
    text = read_text(path)
    try:
        rows = _read_toml(text) if path.suffix == ".toml" else _read_csv(text)
    except (InputError, csv.Error) as error:
        raise InputError(f"{path}: {error}") from None
    if not rows:
        raise InputError(f"{path}: no steps; each needs at_s and rate, and may name a host")
    steps = [_step(path, number, row, hosts) for number, row in enumerate(rows, start=1)]
    return tuple(sorted(steps, key=lambda step: step.at_s))


@contextmanager
def following(
    steps: Sequence[Step], set_rate: Callable[[float, int | None], None]
) -> Iterator[None]:
    """Take the steps at their times, counted from now, until the block ends."""
    ended = threading.Event()
    began = time.monotonic()
    failures: list[Exception] = []

    def follow() -> None:
        for step in steps:
            if ended.wait(max(began + step.at_s - time.monotonic(), 0.0)):
                return
            try:
                set_rate(step.rate, step.host)
            except Exception as error:
                failures.append(error)
                return

    thread = threading.Thread(target=follow, name="bytelane-lab-schedule", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def _read_toml(text: str) -> list[dict[str, Any]]:
    document = parse_toml(text)
    steps = document.pop("step", [])
    if document or not isinstance(steps, list) or not all(isinstance(s, dict) for s in steps):
        raise InputError("a schedule holds [[step]] tables and nothing else")
    return steps


def _read_csv(text: str) -> list[dict[str, Any]]:
    return [
        {str(name).strip(): str(cell).strip() for name, cell in row.items() if cell}
        for row in csv.DictReader(
            io.StringIO(text, newline=""), restkey="one too many", strict=True
        )
    ]


def _step(path: Path, number: int, row: dict[str, Any], hosts: int) -> Step:
    where = f"{path}, step {number}"
    wrong = sorted(row.keys() - {"at_s", "rate", "host"})
    if wrong:
        raise InputError(f"{where}: {wrong[0]!r} is not one of at_s, rate, host")
    for name in ("at_s", "rate"):
        if row.get(name) in (None, ""):
            raise InputError(f"{where}: it has no {name}")
    host = row.get("host", "")
    try:
        step = Step(float(row["at_s"]), parse_rate(row["rate"]), None if host == "" else int(host))
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{where}: {error}") from None
    if step.host is not None and not 0 <= step.host < hosts:
        raise InputError(
            f"{where}: there is no host {shown(step.host)}; hosts are 0 to {hosts - 1}"
        )
    return step
