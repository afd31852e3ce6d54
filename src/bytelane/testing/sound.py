"""Check a policy's data without running it: each check returns what is wrong in words, or None.

In this order: each check relies on those before it.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from bytelane.cluster import Cluster
from bytelane.cluster.collective import WHOLE
from bytelane.core import Parts, Policy
from bytelane.core.kernel import NO_LIMIT
from bytelane.errors import InputError
from bytelane.job import Job

Look = Callable[[Policy, str, Job, Cluster], str | None]


def not_plain_data(policy: Policy, name: str, job: Job, cluster: Cluster) -> str | None:
    """Look for values that are not the same after being written and read again."""
    if type(policy) is not Policy:
        return f"it is a {type(policy).__name__}; it must be a bytelane.core.Policy itself"
    if policy.name != name:
        return f"it calls itself {policy.name!r}; it is registered as {name!r}"
    try:
        again = msgspec.json.decode(msgspec.json.encode(policy), type=Policy)
    except (TypeError, OverflowError, msgspec.MsgspecError) as error:
        return f"it cannot be written and read again: {error}"
    for field in Policy.__struct_fields__:
        mine, read = getattr(policy, field), getattr(again, field)
        if mine != read:
            return f"{field} is {mine!r}, but {read!r} after it was written and read again"
    return None


def not_fitting(policy: Policy, name: str, job: Job, cluster: Cluster) -> str | None:
    """Look for tables of the wrong length, and settings that switch each other off."""
    tensors = len(job.tensors)
    if not policy.stages:
        return "it has no stage, so nothing is ever sent"
    for stage in policy.stages:
        if len(stage.priority) != tensors:
            return f"{stage.collective} has {len(stage.priority)} priorities for {tensors} tensors"
        if any(abs(priority) > NO_LIMIT for priority in stage.priority):
            return f"a priority of {stage.collective} does not fit in 64 bits"
    try:
        policy.cut(job)
    except InputError as error:
        return str(error)
    return _switched_off(policy)


def _switched_off(policy: Policy) -> str | None:
    if policy.stages[0].after_all:
        first = policy.stages[0].collective
        return f"{first} is the first stage; there is nothing it could come after"
    is_cut = policy.cutting != Parts()
    if policy.preemptive and (
        is_cut or policy.barrier or policy.after_backward or policy.fusion_bytes
    ):
        return "it is preemptive, and an ideal link knows no barrier, pieces, groups or fusion"
    return None


def not_covering(policy: Policy, name: str, job: Job, cluster: Cluster) -> str | None:
    """Look for bytes that no piece carries, or several pieces carry."""
    pieces = policy.cut(job)
    order = np.lexsort((pieces.start, pieces.tensor))
    tensor, start, stop = (column[order] for column in (pieces.tensor, pieces.start, pieces.stop))
    is_first = np.diff(tensor, prepend=-1) > 0
    reached = np.where(is_first, 0, np.concatenate([[0], stop[:-1]])[: stop.size])
    for row in np.flatnonzero(start != reached)[:1].tolist():
        low, high = sorted((int(start[row]), int(reached[row])))
        what = "sent twice" if start[row] < reached[row] else "not sent"
        return f"bytes {low} to {high} of tensor {tensor[row]} are {what}"
    sent = np.bincount(tensor, stop - start, len(job.tensors))
    for number in np.flatnonzero(sent != job.columns.bytes)[:1].tolist():
        whole = job.tensors[number].bytes
        return f"{sent[number]:.0f} of the {whole} bytes of tensor {number} are sent"
    return None


def not_whole(policy: Policy, name: str, job: Job, cluster: Cluster) -> str | None:
    """Look for stages that send more or less than one synchronisation."""
    carried = tuple(stage.collective for stage in policy.stages)
    if carried in WHOLE[cluster.sync]:
        return None
    whole = " or ".join(" and ".join(collectives) for collectives in WHOLE[cluster.sync])
    return f"its stages are {' and '.join(carried)}; use {whole}"


IN_ORDER: tuple[Look, ...] = (not_plain_data, not_fitting, not_covering, not_whole)
