"""Tabulate a sweep: the axes that were varied, one record per answer, the fastest answers."""

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bytelane.knob import CREDIT, FUSION, PARTITION, SIZE_SUFFIX
from bytelane.sim.sweep import Answer, WhatIf
from bytelane.units import format_bytes, format_rate, format_seconds

# Times that differ by less are equal: adding up in another order makes such differences.
ROUNDING = 1e-9


class Axis(NamedTuple):
    """A quantity in which settings may differ."""

    name: str
    key: str
    """Its name in JSON and CSV, with the unit."""
    value: Callable[[WhatIf], Any]
    """In that unit; None where a setting has no such quantity."""
    show: Callable[[Any], str] = str
    is_number: bool = True
    usual: Any = None
    """The default, which need not be mentioned."""

    def text(self, setting: WhatIf) -> str:
        """Print the value with its unit."""
        value = self.value(setting)
        return "-" if value is None else self.show(value)

    def phrase(self, setting: WhatIf) -> str:
        """Print the value, with its name if it is a number."""
        return f"{self.name} {self.text(setting)}" if self.is_number else self.text(setting)


_show_count = "{:.12g}".format


def _slow_factor(setting: WhatIf) -> float:
    return (1.0, *setting.cluster.compute_factors)[-1]


def _show_ms(milliseconds: float) -> str:
    return format_seconds(milliseconds / 1000)


def _show_bits(per_second: float) -> str:
    return format_rate(per_second / 8)


# First where the job runs, then how it is scheduled.
PLACE = (
    Axis("job", "job", lambda s: s.job.name, is_number=False),
    Axis("sync", "sync", lambda s: s.cluster.sync, is_number=False),
    Axis("workers", "workers", lambda s: s.cluster.workers, _show_count),
    Axis("servers", "servers", lambda s: s.cluster.servers or None, _show_count),
    Axis("slow", "slow_factor", _slow_factor, "{:g}x".format, usual=1.0),
    Axis("bandwidth", "bandwidth_bit_per_s", lambda s: s.cluster.link.rate * 8, _show_bits),
    Axis("overhead", "overhead_ms", lambda s: s.cluster.link.overhead_s * 1000, _show_ms, usual=0),
    Axis("latency", "latency_ms", lambda s: s.cluster.link.latency_s * 1000, _show_ms, usual=0),
    Axis("floor", "floor_ms", lambda s: s.cluster.link.floor_s * 1000, _show_ms, usual=0),
)
POLICY = Axis("policy", "policy", lambda s: s.policy, is_number=False)


@cache
def _knob_axis(key: str) -> Axis:
    """Return the axis of a knob: the same one for the same key, so that axes can be compared."""
    show = format_bytes if key.endswith(SIZE_SUFFIX) else "{:g}".format
    return Axis(key.removesuffix(SIZE_SUFFIX), key, lambda s: s.knobs.values.get(key), show)


FAMILIAR_KNOBS = tuple(_knob_axis(knob.key) for knob in (PARTITION, CREDIT, FUSION))


def knob_axes(settings: Iterable[WhatIf]) -> tuple[Axis, ...]:
    """Return the axes of the familiar knobs, and of those that only some of the settings have."""
    keys = {key for setting in settings for key in setting.knobs.values}
    others = sorted(keys - {axis.key for axis in FAMILIAR_KNOBS})
    return (*FAMILIAR_KNOBS, *map(_knob_axis, others))


def all_axes(settings: Iterable[WhatIf]) -> tuple[Axis, ...]:
    """Return all axes in which these settings may differ."""
    return (*PLACE, POLICY, *knob_axes(settings))


def swept_axes(settings: Iterable[WhatIf]) -> list[Axis]:
    """Return the axes that were varied, without those that follow, as credit from partition."""
    swept = []
    everything = list(settings)
    alike: dict[Any, list[WhatIf]] = {(): everything}
    for axis in all_axes(everything):
        finer: dict[Any, list[WhatIf]] = {}
        for key, group in alike.items():
            for setting in group:
                finer.setdefault((key, axis.value(setting)), []).append(setting)
        if len(finer) > len(alike):
            swept.append(axis)
            alike = finer
    return swept


def common_ground(settings: Sequence[WhatIf]) -> str:
    """Print the values that all settings share."""
    axes = all_axes(settings)
    alike = [axis for axis in axes if len({axis.value(setting) for setting in settings}) == 1]
    first = settings[0]
    return ", ".join(a.phrase(first) for a in alike if a.value(first) not in (None, a.usual))


def records(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return setting and results of each answer, units in the keys."""
    axes = all_axes([answer.asked for answer in answers])
    return [_record(answer, axes) for answer in answers]


def _record(answer: Answer, axes: Iterable[Axis]) -> dict[str, Any]:
    setting = answer.asked
    return {axis.key: axis.value(setting) for axis in axes} | {
        "colocated": setting.cluster.colocated if setting.cluster.servers else None,
        "shared_link": setting.cluster.shared_link if setting.cluster.servers else None,
        "iteration_ms": answer.iteration_s * 1000,
        "compute_ms": answer.compute_s * 1000,
        "communication_ms": answer.communication_s * 1000,
        "bound_ms": answer.bound_s * 1000,
        "optimal_ms": answer.optimal_s * 1000,
    }


def fastest_answers(answers: Iterable[Answer]) -> list[Answer]:
    """Return for each job and cluster the first of the fastest answers, except the optimum.

    The optimum is a bound, and cannot be run.
    """
    places: dict[Any, list[Answer]] = {}
    for answer in answers:
        place = answer.asked.job.name, answer.asked.cluster
        places.setdefault(place, []).append(answer)
    return [_fastest(group) for group in places.values()]


def _fastest(answers: list[Answer]) -> Answer:
    real = [answer for answer in answers if answer.asked.policy != "optimal"] or answers
    least_s = min(answer.iteration_s for answer in real)
    return next(answer for answer in real if answer.iteration_s <= least_s * (1 + ROUNDING))


def save_csv(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a header and one line per record; missing values are empty."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records)
