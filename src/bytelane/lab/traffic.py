"""Run background flows in a lab, and report flow completion times by size."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from bytelane.errors import InputError, LabError
from bytelane.lab.agents import Agents
from bytelane.lab.workload import DRAIN_S, FlowRecord, Workload

if TYPE_CHECKING:
    from bytelane.lab.lab import Lab

# As in the studies of flow completion times that use the web-search distribution.
SMALL_BYTES = 100_000
LARGE_BYTES = 10_000_000


class SizeClass(msgspec.Struct, frozen=True):
    """Completion times of the flows of a class of sizes; None if none finished."""

    name: str
    flows: int
    unfinished: int
    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None


class TrafficReport(msgspec.Struct, frozen=True):
    """Completion times of the flows of a workload."""

    classes: tuple[SizeClass, ...]
    """Small (up to 100 kB), medium, large (10 MB or more), and all."""
    records: tuple[FlowRecord, ...]
    """All flows, also those that are not counted."""


class Traffic:
    """Background flows under way. They end with :meth:`wait`, :meth:`stop`, or the lab."""

    def __init__(self, lab: "Lab", workload: Workload) -> None:
        if lab.mode == "pacing":
            raise InputError("pacing has no shared links, so no background; use mode namespace")
        self._seconds = workload.seconds
        text = msgspec.json.encode(workload).decode()
        with _naming_failures():
            self._agents = Agents(lab, "flows", text)

    def wait(self, margin_s: float = 0.0) -> TrafficReport:
        """Wait for the end of the workload; report on flows that began ``margin_s`` inside it."""
        if self._seconds is None:
            raise InputError("this traffic has no end; stop it instead")
        with _naming_failures():
            return report(_records(self._agents.finish(self._seconds + 2 * DRAIN_S)), margin_s)

    def stop(self, margin_s: float = 0.0) -> TrafficReport:
        """Stop now, and report; flows under way count as unfinished."""
        with _naming_failures():
            return report(_records(self._agents.stop()), margin_s)


def report(records: Sequence[FlowRecord], margin_s: float = 0.0) -> TrafficReport:
    """Sum flows up by size; those that begin in the first or last ``margin_s`` do not count."""
    if not margin_s >= 0:
        raise InputError(f"a margin of {margin_s} s is not possible; use 0 or more")
    last = max((record.at_s for record in records), default=0.0)
    counted = [record for record in records if margin_s <= record.at_s <= last - margin_s]
    if margin_s and not counted:
        raise InputError(f"no flow begins within {margin_s:g} s of margin on both sides")
    classes = {
        "small": [record for record in counted if record.bytes <= SMALL_BYTES],
        "medium": [record for record in counted if SMALL_BYTES < record.bytes < LARGE_BYTES],
        "large": [record for record in counted if record.bytes >= LARGE_BYTES],
        "all": counted,
    }
    return TrafficReport(
        tuple(_size_class(name, members) for name, members in classes.items()), tuple(records)
    )


@contextmanager
def _naming_failures() -> Iterator[None]:
    try:
        yield
    except LabError as error:
        raise LabError(f"the traffic has failed: {error}") from None


def _records(reports: Iterable[str]) -> list[FlowRecord]:
    decoder = msgspec.json.Decoder(list[FlowRecord])
    return [record for report in reports for record in decoder.decode(report)]


def _size_class(name: str, records: Sequence[FlowRecord]) -> SizeClass:
    took_s = sorted(record.took_s for record in records if record.took_s is not None)
    unfinished = len(records) - len(took_s)
    if not took_s:
        return SizeClass(name, len(records), unfinished)
    quantiles = [_quantile(took_s, share) for share in (0.5, 0.9, 0.99)]
    return SizeClass(name, len(records), unfinished, fmean(took_s), *quantiles)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate between the two nearest of the ordered values."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
