"""Policies as data: cutting, stages with priorities and windows, barrier; and their registry.

A function of a job, a cluster and the knobs makes one. A function of your own is as good as ours:
put ``@register("name")`` on it and every engine and command knows it. The kernel never calls back.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from bytelane.cluster import Cluster, Collective, Sync
from bytelane.cluster.collective import MEANINGS
from bytelane.core.cutting import WHOLE, Cutting, Groups, Units, require_cutting
from bytelane.core.knobs import CreditWindow, Knobs
from bytelane.core.task import Pieces
from bytelane.errors import InputError, UnknownPolicy
from bytelane.job import Job
from bytelane.knob import CREDIT, FAMILIAR, FUSION, PARTITION, SIZE_SUFFIX, Knob
from bytelane.values import nearest, shown


class Stage(msgspec.Struct, frozen=True):
    """A collective that every piece passes, with an order and a window of its own."""

    collective: Collective
    priority: tuple[int, ...]
    """Per tensor. The smallest number is sent first; equal ones in ready order."""
    window: CreditWindow = CreditWindow()
    after_all: bool = False
    """Begin when all pieces have passed the stage before, not each piece as soon as it has."""

    def __post_init__(self) -> None:
        if self.collective not in MEANINGS:
            known = ", ".join(MEANINGS)
            raise InputError(f"{shown(self.collective)} is no collective; use one of {known}")


class Policy(msgspec.Struct, frozen=True):
    """How tensors are cut, in which order they are sent, and what the next forward waits for."""

    name: str
    stages: tuple[Stage, ...]
    barrier: bool
    """Forward waits for all tensors (True), or each layer for its own (False)."""
    cutting: Cutting = WHOLE
    """How tensors become pieces."""
    fusion_bytes: int | None = None
    """Ready operations travel together up to this size; which ones is decided at the start."""
    after_backward: bool = False
    """Nothing starts before the backward pass is over."""
    preemptive: bool = False
    """An ideal link: a transfer gives way to a more urgent one at once, at no cost; simulator only.
    """

    def __post_init__(self) -> None:
        require_cutting(self.cutting, self.name)

    def cut(self, job: Job) -> Pieces:
        """Cut and group the job's tensors as this policy says."""
        return self.cutting.cut(job.columns.bytes, self.stages[0].priority)

    def in_ready_order(self, job: Job) -> "Policy":
        """Return the same pieces and windows without overtaking, to show what the order gains."""
        ready = (len(job.layers) - 1 - job.columns.complete_after).tolist()
        stages = tuple(msgspec.structs.replace(s, priority=tuple(ready)) for s in self.stages)
        cutting = self.cutting
        if isinstance(cutting, Units):
            cutting = msgspec.structs.replace(cutting, first_alone=False)
        return msgspec.structs.replace(self, stages=stages, cutting=cutting)

    @property
    def first_unit_alone(self) -> bool:
        """Tell whether nothing is started beside the first piece."""
        return isinstance(self.cutting, Units) and self.cutting.first_alone

    @property
    def window(self) -> CreditWindow:
        """The window of the first stage, in which the decisions are made."""
        return self.stages[0].window


PolicyMaker = Callable[[Job, Cluster, Knobs], Policy]
EITHER: tuple[Sync, ...] = ("allreduce", "ps")


class Entry(msgspec.Struct, frozen=True):
    """A registered policy: its maker, and what is known before it is made for a job."""

    maker: PolicyMaker
    sync: tuple[Sync, ...]
    knobs: tuple[Knob, ...]
    doc: str

    def knob(self, name: str) -> Knob | None:
        """Return the declaration of a knob; None if the policy has no such knob."""
        return next((knob for knob in self.knobs if knob.name == name), None)


_registry: dict[str, Entry] = {}


def register(
    name: str,
    *,
    sync: tuple[Sync, ...] = EITHER,
    knobs: Sequence[Knob] = (),
    partition_bytes: int | None = None,
    parts_in_flight: int | None = None,
    fusion_bytes: int | None = None,
) -> Callable[[PolicyMaker], PolicyMaker]:
    """Make a policy known by name, with the knobs that it reads.

    ``partition_bytes``, ``parts_in_flight`` and ``fusion_bytes`` are an older way to declare
    ``PARTITION``, ``CREDIT`` and ``FUSION`` with these defaults.
    """
    older = (partition_bytes, parts_in_flight, fusion_bytes)
    if any(default is not None for default in older):
        text = f"declare the knobs of policy {name} as knobs=[PARTITION.with_default(...), ...]"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
    declared = (*knobs, *_declared_in_the_older_way(*older))
    _require_sound(name, declared)

    def keep(maker: PolicyMaker) -> PolicyMaker:
        if name in _registry:
            raise InputError(f"there is already a policy {name!r}; choose another name")
        doc = (maker.__doc__ or "").strip().partition("\n")[0]
        _registry[name] = Entry(maker, sync, declared, doc)
        return maker

    return keep


def _declared_in_the_older_way(
    partition_bytes: int | None, parts_in_flight: int | None, fusion_bytes: int | None
) -> Iterator[Knob]:
    if partition_bytes is not None:
        yield PARTITION.with_default(partition_bytes)
    if parts_in_flight is not None:
        has_parts = partition_bytes is not None
        yield CREDIT.with_default(parts_in_flight) if has_parts else replace(CREDIT, times="")
    if fusion_bytes is not None:
        yield FUSION.with_default(fusion_bytes)


def _require_sound(policy: str, knobs: Sequence[Knob]) -> None:
    """Refuse declarations that contradict each other, or the common meaning of a familiar name."""
    kinds = {knob.name: knob.kind for knob in FAMILIAR}
    before: list[str] = []
    for knob in knobs:
        if not isinstance(knob, Knob):
            raise InputError(f"a knob of policy {policy} is {shown(knob)}; it must be a Knob")
        if knob.name in before:
            raise InputError(f"policy {policy} declares knob {knob.name} twice; leave one out")
        if knob.times and knob.times not in before:
            raise InputError(
                f"knob {knob.name} of policy {policy} is a multiple of {knob.times}; declare that "
                "before it"
            )
        if kinds.get(knob.name, knob.kind) != knob.kind:
            raise InputError(
                f"{knob.name} is a size under every policy; call knob {knob.name} of "
                f"policy {policy} by another name"
            )
        before.append(knob.name)


def policies_for(sync: Sync) -> tuple[str, ...]:
    """Return the names of all policies that can synchronise this way."""
    return tuple(name for name, entry in _registry.items() if sync in entry.sync)


def policy_names() -> tuple[str, ...]:
    """Return all names, in the order in which they were registered."""
    return tuple(_registry)


def policy_entry(name: str) -> Entry:
    """Return the registry entry of a policy."""
    if not isinstance(name, str):
        raise UnknownPolicy(f"policy is {shown(name)}; it must be the name of one")
    if name not in _registry:
        hint, names = nearest(name, _registry), ", ".join(_registry)
        raise UnknownPolicy(f"there is no policy {shown(name)}{hint} (there are {names})")
    return _registry[name]


def make_policy(name: str, job: Job, cluster: Cluster, knobs: Knobs | None = None) -> Policy:
    """Make the policy of that name for a job on a cluster; its default knobs if none are given."""
    entry = policy_entry(name)
    if cluster.sync not in entry.sync:
        ways = " and ".join(policies_for(cluster.sync))
        raise InputError(f"policy {name} has no meaning for {cluster.sync}; these have: {ways}")
    policy = entry.maker(job, cluster, knobs or choose_knobs(name))
    for stage in policy.stages:
        _require_one_each(name, f"priorities in stage {stage.collective}", stage.priority, job)
    if isinstance(policy.cutting, Groups):
        _require_one_each(name, "groups", policy.cutting.numbers, job)
    return policy


def _require_one_each(name: str, what: str, numbers: tuple[int, ...], job: Job) -> None:
    if len(numbers) != len(job.tensors):
        raise InputError(
            f"policy {name} gave {len(numbers)} {what} for {len(job.tensors)} tensors; "
            "one per tensor is needed"
        )


def choose_knobs(
    name: str,
    partition_bytes: float | None = None,
    credit_bytes: float | None = None,
    fusion_bytes: float | None = None,
    **others: float | None,
) -> Knobs:
    """Fill in the defaults of knobs left open; refuse knobs without effect under this policy.

    Keywords are the names of knobs with their units, as in the fields of :class:`Knobs`.
    """
    familiar = (partition_bytes, credit_bytes, fusion_bytes)
    keys = (PARTITION.key, CREDIT.key, FUSION.key)
    given = dict(zip(keys, familiar, strict=True)) | others
    entry = policy_entry(name)
    for key, value in given.items():
        if value is not None and key not in (knob.key for knob in entry.knobs):
            require_knob(name, key.removesuffix(SIZE_SUFFIX))
            raise InputError(f"{key} is no knob of policy {name} with this unit; leave it out")
    values: dict[str, float] = {}
    for knob in entry.knobs:
        value = given.get(knob.key)
        value = knob.default_among(values) if value is None else value
        if value is not None:
            values[knob.name] = knob.require(value)
    return Knobs.of({knob.key: values.get(knob.name) for knob in entry.knobs})


def require_knob(policy: str, name: str) -> Knob:
    """Return the declaration of a policy's knob, by its name; refuse one that it does not have."""
    knob = policy_entry(policy).knob(name)
    if knob is None:
        known = find_knob((), name)
        raise InputError(f"{known.name} has no effect under policy {policy}; leave it out")
    return knob


def find_knob(policies: Iterable[str], name: str) -> Knob:
    """Return how one of these policies declares a knob, or else any other policy."""
    entries = [*map(policy_entry, policies), *_registry.values()]
    found = [knob for knob in (entry.knob(name) for entry in entries) if knob is not None]
    if not found:
        names = dict.fromkeys(knob.name for entry in entries for knob in entry.knobs)
        raise InputError(
            f"there is no knob {shown(name)}{nearest(name, names)} (there are {', '.join(names)})"
        )
    return found[0]
