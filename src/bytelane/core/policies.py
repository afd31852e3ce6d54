"""The policies of the literature."""

from bytelane.core.knobs import CreditWindow, Knobs
from bytelane.core.policy import Policy, register
from bytelane.job import Job


@register("fifo")
def fifo(job: Job, knobs: Knobs) -> Policy:
    """Send whole tensors in ready order, without limit: wait-free backpropagation."""
    count = len(job.tensors)
    return Policy("fifo", (0,) * count, (None,) * count, CreditWindow(), barrier=True)


@register("bytescheduler", "partition_bytes", "credit_bytes")
def bytescheduler(job: Job, knobs: Knobs) -> Policy:
    """Send parts in the order in which forward needs them (Peng et al., SOSP 2019)."""
    return Policy(
        "bytescheduler",
        # Parts of one tensor share its priority and leave in the order in which they were cut.
        tuple(tensor.needed_by for tensor in job.tensors),
        (knobs.partition_bytes,) * len(job.tensors),
        CreditWindow(knobs.credit_bytes),
        barrier=False,
    )
