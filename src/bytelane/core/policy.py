"""A policy is data: how tensors are cut, what they pass through, and who waits for whom.

A function from a job, a cluster and the knobs makes it. A function of your own is as good as ours:
put ``@register("name")`` on it and every engine and command knows it. The kernel never calls back.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from bytelane.cluster import Cluster, Sync
from bytelane.core.knobs import CreditWindow, Knobs
from bytelane.core.task import Pieces, group_pieces, partition, unit_pieces
from bytelane.errors import InputError, UnknownPolicy
from bytelane.job import Job
from bytelane.values import nearest, shown


class Stage(msgspec.Struct, frozen=True):
    """A transfer that every piece goes through: an all-reduce, a push, a pull, an all-gather..."""

    name: str
    priority: tuple[int, ...]
    """Per tensor. The smallest goes first; equal ones go in ready order."""
    window: CreditWindow = CreditWindow()
    link: int = 0
    """Which of a worker's links carries it: 0 is up (or the only one), 1 is down."""
    share: float = 1.0
    """How much of a whole transfer this is: a reduce-scatter is half an all-reduce."""
    after_all: bool = False
    """Begin when all pieces have passed the stage before, not each piece when it has."""


class Policy(msgspec.Struct, frozen=True):
    """One answer to: what goes next, in what pieces, and who waits for it."""

    name: str
    stages: tuple[Stage, ...]
    barrier: bool
    """Forward waits for all tensors (True), or each layer for its own (False)."""
    part_bytes: int | None = None
    """Tensors are cut into parts of this size; None keeps them whole."""
    unit_bytes: int | None = None
    """All tensors, end to end in the first stage's order, are cut every so many bytes. No parts."""
    first_unit_bytes: int | None = None
    """The first unit is of this size, and the next are each twice as large until they are full."""
    first_unit_alone: bool = False
    """Nothing is started beside the first unit, with which it would have to share the link."""
    groups: tuple[int, ...] | None = None
    """Per tensor: tensors with the same number travel together. Neither parts nor units."""
    fusion_bytes: int | None = None
    """Whatever is ready travels together up to this size, decided when it starts."""
    after_backward: bool = False
    """Nothing starts before the backward pass is over."""
    preemptive: bool = False
    """An ideal link: what is sent gives way at once, at no cost. Only a simulator can do that."""

    def cut(self, job: Job) -> Pieces:
        """Cut and group the job's tensors as this policy wants them."""
        if self.groups is not None:
            return group_pieces(job.columns.bytes, self.groups)
        if self.unit_bytes is not None:
            order = np.argsort(self.stages[0].priority, kind="stable")
            return unit_pieces(job.columns.bytes, order, self.unit_bytes, self.first_unit_bytes)
        return partition(job.columns.bytes, self.part_bytes)

    def in_ready_order(self, job: Job) -> "Policy":
        """Return the same pieces and windows without overtaking: what its order is worth."""
        ready = (len(job.layers) - 1 - job.columns.complete_after).tolist()
        stages = tuple(msgspec.structs.replace(s, priority=tuple(ready)) for s in self.stages)
        return msgspec.structs.replace(self, stages=stages, first_unit_alone=False)

    @property
    def window(self) -> CreditWindow:
        """The window of the first stage, in which the decisions are made."""
        return self.stages[0].window


PolicyMaker = Callable[[Job, Cluster, Knobs], Policy]
EITHER: tuple[Sync, ...] = ("allreduce", "ps")


class Entry(msgspec.Struct, frozen=True):
    """What is known of a policy before it is made for a job."""

    maker: PolicyMaker
    sync: tuple[Sync, ...]
    partition_bytes: int | None
    parts_in_flight: int | None
    fusion_bytes: int | None
    doc: str


_registry: dict[str, Entry] = {}


def register(
    name: str,
    *,
    sync: tuple[Sync, ...] = EITHER,
    partition_bytes: int | None = None,
    parts_in_flight: int | None = None,
    fusion_bytes: int | None = None,
) -> Callable[[PolicyMaker], PolicyMaker]:
    """Make a policy known by name. A knob that has a default here is one that it uses."""

    def keep(maker: PolicyMaker) -> PolicyMaker:
        if name in _registry:
            raise InputError(f"there is already a policy {name!r}; choose another name")
        doc = (maker.__doc__ or "").strip().partition("\n")[0]
        _registry[name] = Entry(maker, sync, partition_bytes, parts_in_flight, fusion_bytes, doc)
        return maker

    return keep


def policies_for(sync: Sync) -> tuple[str, ...]:
    """Return the names of all policies that can synchronise this way."""
    return tuple(name for name, entry in _registry.items() if sync in entry.sync)


def policy_names() -> tuple[str, ...]:
    """Return all names, in the order in which they were registered."""
    return tuple(_registry)


def policy_entry(name: str) -> Entry:
    """Return what is known of the policy of that name."""
    if not isinstance(name, str):
        raise UnknownPolicy(f"policy is {shown(name)}; it must be the name of one")
    if name not in _registry:
        hint, names = nearest(name, _registry), ", ".join(_registry)
        raise UnknownPolicy(f"there is no policy {shown(name)}{hint} (there are {names})")
    return _registry[name]


def make_policy(name: str, job: Job, cluster: Cluster, knobs: Knobs | None = None) -> Policy:
    """Make the policy of that name for a job on a cluster; its own knobs if none are given."""
    entry = policy_entry(name)
    if cluster.sync not in entry.sync:
        ways = " and ".join(policies_for(cluster.sync))
        raise InputError(f"policy {name} has no meaning for {cluster.sync}; these have: {ways}")
    policy = entry.maker(job, cluster, knobs or choose_knobs(name))
    for stage in policy.stages:
        _require_one_each(name, f"priorities in stage {stage.name}", stage.priority, job)
    if policy.groups is not None:
        _require_one_each(name, "groups", policy.groups, job)
    return policy


def _require_one_each(name: str, what: str, numbers: tuple[int, ...], job: Job) -> None:
    if len(numbers) != len(job.tensors):
        raise InputError(
            f"policy {name} gave {len(numbers)} {what} for {len(job.tensors)} tensors; "
            "one a tensor is needed"
        )


def choose_knobs(
    name: str,
    partition_bytes: int | None = None,
    credit_bytes: int | None = None,
    fusion_bytes: int | None = None,
) -> Knobs:
    """Fill in what was left open; refuse what would have no effect under this policy."""
    entry = policy_entry(name)
    for knob, given, default in (
        ("partition", partition_bytes, entry.partition_bytes),
        ("credit", credit_bytes, entry.parts_in_flight),
        ("fusion", fusion_bytes, entry.fusion_bytes),
    ):
        if given is not None and default is None:
            raise InputError(f"{knob} has no effect under policy {name}; leave it out")
    part = entry.partition_bytes if partition_bytes is None else partition_bytes
    credit = credit_bytes
    if credit is None and part is not None and entry.parts_in_flight is not None:
        credit = entry.parts_in_flight * part
    return Knobs(part, credit, entry.fusion_bytes if fusion_bytes is None else fusion_bytes)
