"""Parse comma-separated lists of values into the settings of a sweep.

A value that is there twice, perhaps in another spelling (1Gbit,1000Mbit), counts once.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bytelane.api import find_job, make_cluster
from bytelane.cluster import Sync
from bytelane.core import find_knob, policy_entry, policy_names
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.plugins import look_for
from bytelane.sim.sweep import WhatIf, combinations, count_choices, make_settings, require_use

LIMIT = 1_000_000
T = TypeVar("T")
Typed = Sequence[str]
"""The values of an option: comma-separated items, one text for each time it was given."""


def read_jobs(names: Sequence[Path], accelerator: str | None, batch: int | None) -> list[Job]:
    """Find the jobs; jobs of the same name are called by their paths instead."""
    jobs = [
        (str(name), find_job(name, accelerator=accelerator, batch=batch))
        for name in dict.fromkeys(names)
    ]
    names_found = [job.name for _, job in jobs]
    return [
        job if names_found.count(job.name) == 1 else msgspec.structs.replace(job, name=typed)
        for typed, job in jobs
    ]


def read_settings(
    jobs: Sequence[Job],
    *,
    policy: Typed,
    knobs: Mapping[str, Typed],
    sync: Typed,
    cluster: Mapping[str, Typed],
    servers_are: Mapping[str, bool],
) -> list[WhatIf]:
    """Combine all lists; refuse a value that has no effect in any combination."""
    syncs = _read("sync", sync, lambda item: make_cluster(sync=item).sync)
    policies = _read_policies(policy, syncs)
    values = _read_knobs(knobs, policies)
    require_use(policies, syncs, values)
    lists = [_cluster_lists(way, syncs, cluster, servers_are) for way in syncs]
    choices = [count_choices(policies, way, values) for way in syncs]
    places = [prod(map(len, keywords.values())) for keywords in lists]
    _require_few(len(jobs) * sum(p * c for p, c in zip(places, choices, strict=True)))
    clusters = [make_cluster(**chosen) for keywords in lists for chosen in combinations(keywords)]
    return make_settings(jobs, list(dict.fromkeys(clusters)), policies, values)


def _cluster_lists(
    sync: Sync, syncs: Sequence[Sync], typed: Mapping[str, Typed], servers_are: Mapping[str, bool]
) -> dict[str, list[Any]]:
    """Return the values for each keyword of make_cluster, with one way to synchronise."""
    readers = {"workers": _whole_number, "servers": _whole_number, "slow": _factor}
    lists: dict[str, list[Any]] = {"sync": [sync]}
    lists |= {name: [value] for name, value in servers_are.items()}
    for name, items in typed.items():
        lists[name] = _read(name, items, readers.get(name, str)) or [None]
    if sync == "allreduce" and "ps" in syncs:  # alone, make_cluster refuses servers
        lists |= {"servers": [None]} | {name: [False] for name in servers_are}
    return lists


def _read_policies(typed: Typed, syncs: Sequence[Sync]) -> list[str]:
    names = _read("policy", typed, str)
    for name in names:
        look_for(name)  # "all" is not registered, so it loads all plug-ins
    every = [name for name in policy_names() if set(policy_entry(name).sync) & set(syncs)]
    chosen: list[str] = []
    for name in names:
        chosen += every if name == "all" else [name]
    return list(dict.fromkeys(chosen))


def _read_knobs(knobs: Mapping[str, Typed], policies: Sequence[str]) -> dict[str, list[float]]:
    """Read values as the policies declare their knobs."""
    found = {}
    for name, typed in knobs.items():
        if typed:
            knob = find_knob(policies, name)
            found[knob.key] = _read(name, typed, knob.read)
    return found


def _read(option: str, typed: Typed, reader: Callable[[str], T]) -> list[T]:
    items = [item.strip() for text in typed for item in text.split(",")]
    if "" in items:
        raise InputError(f"{option} {','.join(typed)!r} has an empty item; write values like a,b,c")
    return list(dict.fromkeys(reader(item) for item in items))


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{text!r} is not a whole number of hosts") from None


def _factor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a factor; write a number such as 1.5") from None


def _require_few(count: int) -> None:
    if count > LIMIT:
        raise InputError(
            f"these lists make {count:,} settings; a sweep has at most {LIMIT:,}, so shorten them"
        )
