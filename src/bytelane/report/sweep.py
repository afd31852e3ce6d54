"""A sweep as numbers: what was varied, what each answer says, and which one is the fastest."""

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bytelane.sim.sweep import Answer, Setting
from bytelane.units import format_bytes, format_rate, format_seconds

# Times that differ by less are equal: adding up in another order makes such differences.
ROUNDING = 1e-9


class Axis(NamedTuple):
    """Something in which settings may differ."""

    name: str
    key: str
    """Its name in JSON and CSV, with the unit."""
    value: Callable[[Setting], Any]
    """In that unit; None where a setting has no such thing."""
    show: Callable[[Any], str] = str
    is_number: bool = True
    usual: Any = None
    """What need not be mentioned."""

    def text(self, setting: Setting) -> str:
        """Print the value for people, with its unit."""
        value = self.value(setting)
        return "-" if value is None else self.show(value)

    def phrase(self, setting: Setting) -> str:
        """Print the value with its name where it would not be understood without."""
        return f"{self.name} {self.text(setting)}" if self.is_number else self.text(setting)


_show_count = "{:.12g}".format


def _slow_factor(setting: Setting) -> float:
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
SCHEDULE = (
    Axis("policy", "policy", lambda s: s.policy, is_number=False),
    Axis("partition", "partition_bytes", lambda s: s.knobs.partition_bytes, format_bytes),
    Axis("credit", "credit_bytes", lambda s: s.knobs.credit_bytes, format_bytes),
    Axis("fusion", "fusion_bytes", lambda s: s.knobs.fusion_bytes, format_bytes),
)
AXES = PLACE + SCHEDULE


def swept_axes(settings: Iterable[Setting]) -> list[Axis]:
    """Return what was varied, but not what only follows from it, as the credit from the part."""
    swept = []
    alike: dict[Any, list[Setting]] = {(): list(settings)}
    for axis in AXES:
        finer: dict[Any, list[Setting]] = {}
        for key, group in alike.items():
            for setting in group:
                finer.setdefault((key, axis.value(setting)), []).append(setting)
        if len(finer) > len(alike):
            swept.append(axis)
            alike = finer
    return swept


def common_ground(settings: Sequence[Setting]) -> str:
    """Say in what the settings do not differ."""
    alike = [axis for axis in AXES if len({axis.value(setting) for setting in settings}) == 1]
    first = settings[0]
    return ", ".join(a.phrase(first) for a in alike if a.value(first) not in (None, a.usual))


def record(answer: Answer) -> dict[str, Any]:
    """Return all that was asked and all that was found, units in the keys."""
    setting = answer.setting
    return {axis.key: axis.value(setting) for axis in AXES} | {
        "colocated": setting.cluster.colocated if setting.cluster.servers else None,
        "shared_link": setting.cluster.shared_link if setting.cluster.servers else None,
        "iteration_ms": answer.iteration_s * 1000,
        "compute_ms": answer.compute_s * 1000,
        "communication_ms": answer.communication_s * 1000,
        "bound_ms": answer.bound_s * 1000,
        "optimal_ms": answer.optimal_s * 1000,
    }


def fastest_answers(answers: Iterable[Answer]) -> list[Answer]:
    """Return for each job and cluster the first of the fastest, the optimum left out of account.

    The optimum is a bound that nobody can run.
    """
    places: dict[Any, list[Answer]] = {}
    for answer in answers:
        place = answer.setting.job.name, answer.setting.cluster
        places.setdefault(place, []).append(answer)
    return [_fastest(group) for group in places.values()]


def _fastest(answers: list[Answer]) -> Answer:
    real = [answer for answer in answers if answer.setting.policy != "optimal"] or answers
    least_s = min(answer.iteration_s for answer in real)
    return next(answer for answer in real if answer.iteration_s <= least_s * (1 + ROUNDING))


def save_csv(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a line with the names and one for each record; what is not there is left empty."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records)
