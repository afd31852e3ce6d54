"""What can be wrong with a policy's data, seen without running it. In words, or None if it is fine.

In this order: each look relies on those before it.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from bytelane.cluster import Cluster
from bytelane.core import Policy
from bytelane.core.kernel import NO_LIMIT
from bytelane.errors import InputError
from bytelane.job import Job

Look = Callable[[Policy, str, Job, Cluster], str | None]


def not_plain_data(policy: Policy, name: str, job: Job, cluster: Cluster) -> str | None:
    """Look for what cannot be written down and read again as it was."""
    if type(policy) is not Policy:
        return f"it is a {type(policy).__name__}; it must be a bytelane.core.Policy itself"
    if policy.name != name:
        return f"it calls itself {policy.name!r}; it is registered as {name!r}"
    try:
        again = msgspec.json.decode(msgspec.json.encode(policy), type=Policy)
    except (TypeError, OverflowError, msgspec.MsgspecError) as error:
        return f"it cannot be written down and read again: {error}"
    for field in Policy.__struct_fields__:
        mine, read = getattr(policy, field), getattr(again, field)
        if mine != read:
            return f"{field} is {mine!r}, but reads {read!r} after it was written down"
    return None


def not_fitting(policy: Policy, name: str, job: Job, cluster: Cluster) -> str | None:
    """Look for tables of the wrong length, and settings that switch each other off."""
    tensors = len(job.tensors)
    if not policy.stages:
        return "it has no stage, so nothing is ever sent"
    for stage in policy.stages:
        if len(stage.priority) != tensors:
            return f"{stage.name} has {len(stage.priority)} priorities for {tensors} tensors"
        if any(abs(priority) > NO_LIMIT for priority in stage.priority):
            return f"a priority of {stage.name} does not fit in 64 bits"
    if policy.groups is not None and len(policy.groups) > tensors:
        return f"it has {len(policy.groups)} groups' numbers for {tensors} tensors"
    try:
        policy.cut(job)
    except InputError as error:
        return str(error)
    return _switched_off(policy)


def _switched_off(policy: Policy) -> str | None:
    if policy.stages[0].after_all:
        return f"{policy.stages[0].name} is the first stage; there is nothing it could come after"
    cutting = {"groups": policy.groups, "units": policy.unit_bytes, "parts": policy.part_bytes}
    if policy.unit_bytes is None and (policy.first_unit_bytes or policy.first_unit_alone):
        return "it has a first unit, but no units"
    used = [name for name, value in cutting.items() if value is not None]
    if len(used) > 1:
        return f"it has {' and '.join(used)}, but only {used[0]} would count"
    if policy.preemptive and (
        used or policy.barrier or policy.after_backward or policy.fusion_bytes
    ):
        return "it is preemptive, and an ideal link knows no barrier, pieces, groups or fusion"
    return None


def not_covering(policy: Policy, name: str, job: Job, cluster: Cluster) -> str | None:
    """Look for bytes that no piece carries, or several do."""
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
    for stage in policy.stages:
        if not 0 < stage.share <= 1:
            return f"{stage.name} has a share of {stage.share:g}; it must be above 0, at most 1"
    if cluster.sync == "allreduce":
        total = sum(stage.share for stage in policy.stages)
        return None if total == 1 else f"its stages are {total:g} of an all-reduce"
    links = [stage.link for stage in policy.stages]
    if links != sorted(links):
        return "it pulls before it has pushed"
    if not set(links) <= {0, 1}:
        return f"it uses link {max(links)}, but a worker has 0 (up) and 1 (down)"
    for link, way in ((0, "push"), (1, "pull")):
        total = sum(stage.share for stage in policy.stages if stage.link == link)
        if total != 1:
            return f"its stages are {total:g} of a {way} (link {link})"
    return None


IN_ORDER: tuple[Look, ...] = (not_plain_data, not_fitting, not_covering, not_whole)
