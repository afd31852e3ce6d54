"""A policy is data: each tensor's priority, how it is cut, and who waits for whom.

A function from a job and the knobs makes it. A function of your own is as good as ours: put
``@register("name")`` on it and every engine and command knows it. The kernel never calls back.
"""

import difflib
from collections.abc import Callable

import msgspec

from bytelane.core.knobs import CreditWindow, Knobs
from bytelane.core.task import Pieces, partition
from bytelane.errors import InputError, UnknownPolicy
from bytelane.job import Job


class Policy(msgspec.Struct, frozen=True):
    """One answer to: what goes next, in what pieces, and who waits for it."""

    name: str
    priority: tuple[int, ...]
    """Per tensor. The smallest goes first; equal ones go in ready order."""
    part_bytes: tuple[int | None, ...]
    """Per tensor. None sends it whole."""
    window: CreditWindow
    barrier: bool
    """Forward waits for all tensors (True), or each layer for its own (False)."""

    def cut(self, job: Job) -> Pieces:
        """Cut the job's tensors as this policy wants them."""
        return partition([tensor.bytes for tensor in job.tensors], self.part_bytes)


PolicyMaker = Callable[[Job, Knobs], Policy]


class _Entry(msgspec.Struct, frozen=True):
    maker: PolicyMaker
    knobs: frozenset[str]


_registry: dict[str, _Entry] = {}


def register(name: str, *knobs: str) -> Callable[[PolicyMaker], PolicyMaker]:
    """Make a policy known by name; ``knobs`` are the fields of :class:`Knobs` it looks at."""
    unknown = set(knobs) - set(Knobs.__struct_fields__)
    if unknown:
        raise InputError(f"there is no knob {unknown.pop()!r}; {Knobs.__struct_fields__} exist")

    def keep(maker: PolicyMaker) -> PolicyMaker:
        if name in _registry:
            raise InputError(f"there is already a policy {name!r}; choose another name")
        _registry[name] = _Entry(maker, frozenset(knobs))
        return maker

    return keep


def policy_names() -> tuple[str, ...]:
    """Return all names, in the order in which they were registered."""
    return tuple(_registry)


def make_policy(name: str, job: Job, knobs: Knobs) -> Policy:
    """Make the policy of that name for a job."""
    return _entry(name).maker(job, knobs)


def knobs_used(name: str) -> frozenset[str]:
    """Return the knobs that have an effect under this policy."""
    return _entry(name).knobs


def _entry(name: str) -> _Entry:
    if name not in _registry:
        near = difflib.get_close_matches(name, _registry, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UnknownPolicy(f"there is no policy {name!r}{hint} (there are {', '.join(_registry)})")
    return _registry[name]
