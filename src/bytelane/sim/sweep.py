"""Sweep: simulate every combination of jobs, clusters, policies and knobs, in order."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from importlib.util import find_spec
from itertools import accumulate, chain, groupby, product
from math import isqrt, prod
from typing import TypeVar

import msgspec

from bytelane.cluster import Cluster, Sync
from bytelane.core import Knobs, Setting, choose_knobs, policy_entry
from bytelane.core.policy import PolicyMaker
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.knob import SIZE_SUFFIX
from bytelane.sim.engine import (
    ITERATIONS,
    ITERATIONS_UNTIL_IN_STEP,
    WORTH_COMPILING,
    Engine,
)
from bytelane.sim.evaluation import Times, times_each
from bytelane.sim.optimal import optimal_iteration_s

T = TypeVar("T")
KnobLists = Mapping[str, Sequence[float]]
"""Values to try, by the knobs' names with units; a missing knob keeps its default."""
Task = tuple[Job, Cluster, PolicyMaker, Knobs]
"""A setting for another process, with the policy's maker: its name may not be registered there."""
Found = tuple[Times, float]
"""The times of one setting, and the optimum."""


class WhatIf(msgspec.Struct, frozen=True):
    """A setting, for a job on a cluster."""

    job: Job
    cluster: Cluster
    setting: Setting

    @property
    def policy(self) -> str:
        return self.setting.policy

    @property
    def knobs(self) -> Knobs:
        return self.setting.knobs

    def __post_init__(self) -> None:
        if self.cluster.sync not in policy_entry(self.policy).sync:
            raise InputError(f"policy {self.policy} has no meaning for {self.cluster.sync}")


class Answer(msgspec.Struct, frozen=True):
    """What a simulation of the setting found, without its trace."""

    asked: WhatIf
    iteration_s: float
    compute_s: float
    communication_s: float
    optimal_s: float

    @property
    def bound_s(self) -> float:
        """No schedule of these operations is faster: both resources are needed in full."""
        return max(self.compute_s, self.communication_s)


def make_settings(
    jobs: Sequence[Job],
    clusters: Sequence[Cluster],
    policies: Sequence[str],
    knobs: KnobLists | None = None,
) -> list[WhatIf]:
    """Combine everything with everything, the policies and their knobs fastest.

    A policy is combined with the knobs that it uses and with the clusters that it has a meaning
    for. A policy, kind of cluster or knob that is then in no combination is refused.
    """
    lists = knobs or {}
    require_use(policies, list(dict.fromkeys(cluster.sync for cluster in clusters)), lists)
    choices = {sync: _choices(policies, sync, lists) for sync in {c.sync for c in clusters}}
    return [
        WhatIf(job, cluster, Setting(policy, chosen))
        for job in jobs
        for cluster in clusters
        for policy, chosen in choices[cluster.sync]
    ]


def count_choices(policies: Sequence[str], sync: Sync, knobs: KnobLists) -> int:
    """Return how many settings a job has on one cluster, without making them."""
    able = [name for name in policies if sync in policy_entry(name).sync]
    return sum(prod(map(len, _used(name, knobs).values())) for name in able)


def require_use(policies: Sequence[str], syncs: Sequence[Sync], knobs: KnobLists) -> None:
    """Refuse policies, kinds of cluster and knobs that would be part of no setting."""
    for name in policies:
        if not set(policy_entry(name).sync) & set(syncs):
            raise InputError(f"policy {name} has no meaning for {' or '.join(syncs)}; leave it out")
    for sync in syncs:
        if not count_choices(policies, sync, {}):
            raise InputError(
                f"{sync} has none of these policies: {', '.join(policies)}; leave it out"
            )
    for knob, values in knobs.items():
        if values and not any(_used(name, {knob: values}) for name in policies):
            what = knob.removesuffix(SIZE_SUFFIX)
            raise InputError(f"{what} has no effect under {' or '.join(policies)}; leave it out")


def combinations(lists: Mapping[str, Sequence[T]]) -> Iterator[dict[str, T]]:
    """Take one value of each list, in every possible way, the last list fastest."""
    return (dict(zip(lists, chosen, strict=True)) for chosen in product(*lists.values()))


def sweep(settings: Sequence[WhatIf], executor: Executor | None = None) -> Iterator[Answer]:
    """Simulate every setting in order, in this process or in the executor's.

    Each answer is that of ``simulate``, to the last bit and wherever it was computed.
    """
    tasks = [(s.job, s.cluster, policy_entry(s.policy).maker, s.knobs) for s in settings]
    compiled = _worth_compiling(settings)
    if executor is None:
        found = _simulate(tasks, compiled)
    else:
        work = partial(_simulate_all, compiled=compiled)
        found = chain.from_iterable(executor.map(work, _chunks(tasks)))
    for setting, (times, optimal_s) in zip(settings, found, strict=True):
        yield Answer(setting, *times, optimal_s)


def _choices(policies: Sequence[str], sync: Sync, knobs: KnobLists) -> list[tuple[str, Knobs]]:
    return [
        (name, choose_knobs(name, **chosen))
        for name in policies
        if sync in policy_entry(name).sync
        for chosen in combinations(_used(name, knobs))
    ]


def _used(policy: str, knobs: KnobLists) -> KnobLists:
    """Keep the lists that are not empty and have an effect under this policy."""
    declared = {knob.key for knob in policy_entry(policy).knobs}
    return {key: values for key, values in knobs.items() if values and key in declared}


def _worth_compiling(settings: Sequence[WhatIf]) -> bool:
    return any(steps >= WORTH_COMPILING for steps in accumulate(map(_about_steps, settings)))


def _about_steps(setting: WhatIf) -> int:
    """Estimate how much is simulated, in steps of a whole simulation, without making the policy."""
    job, part = setting.job, setting.knobs.partition_bytes
    pieces = max(len(job.tensors), job.total_bytes // part if part else 0)
    steps = 3 * len(job.layers) + pieces
    if len(set(setting.cluster.compute_factors)) > 1:
        return steps * setting.cluster.workers * ITERATIONS_UNTIL_IN_STEP // ITERATIONS
    return steps // ITERATIONS  # a single iteration is simulated


def _chunks(tasks: Sequence[Task]) -> list[Sequence[Task]]:
    """Cut into chunks: enough for all cores to end together, few enough for cheap transfer."""
    size = max(1, isqrt(len(tasks)) // 2)
    return [tasks[i : i + size] for i in range(0, len(tasks), size)]


def _simulate_all(tasks: Sequence[Task], compiled: bool) -> list[Found]:
    return list(_simulate(tasks, compiled))


def _simulate(tasks: Sequence[Task], compiled: bool) -> Iterator[Found]:
    # Asked here, in the process that simulates: it may lack the compiler.
    engine: Engine = "compiled" if compiled and find_spec("numba") else "auto"
    for _, alike in groupby(tasks, key=lambda task: (id(task[0]), id(task[1]))):
        same = list(alike)
        job, cluster = same[0][:2]
        optimal_s = optimal_iteration_s(job, cluster)
        policies = (make(job, cluster, knobs) for _, _, make, knobs in same)
        for times in times_each(job, cluster, policies, engine):
            yield times, optimal_s
