"""Register a policy of your own: join small tensors into groups, send groups in the order of need.

    python examples/own_policy.py           # beside the policies of the literature
    pytest examples/test_own_policy.py      # does it keep the contract?

Parts (bytescheduler) cut large tensors so that urgent ones need not wait long. But most tensors are
small, and every message costs something. So here nothing is cut, and tensors that become ready one
after another are sent together, up to a size.
"""

import bytelane
from bytelane.cluster import Cluster
from bytelane.core import CreditWindow, Groups, Knobs, Policy, Stage, register
from bytelane.job import Job
from bytelane.knob import FUSION


@register("carpool", sync=("allreduce",), knobs=[FUSION.with_default(4 * 2**20)])
def carpool(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send neighbours together up to a size, the most urgent group first, about two in flight."""
    seats = knobs.fusion_bytes or 0
    groups = [0] * len(job.tensors)
    number, room = -1, 0
    by_readiness = sorted(range(len(groups)), key=lambda t: -job.tensors[t].complete_after)
    for tensor in by_readiness:
        if job.tensors[tensor].bytes > room:
            number, room = number + 1, seats
        groups[tensor] = number
        room -= job.tensors[tensor].bytes
    urgency = tuple(tensor.needed_by for tensor in job.tensors)
    stage = Stage("all-reduce", urgency, CreditWindow(seats))
    return Policy("carpool", (stage,), barrier=False, cutting=Groups(tuple(groups)))


def main() -> None:
    for overhead, latency in (("20us", "50us"), ("200us", "300us")):
        print(
            f"resnet50, 8 workers, 25 Gbit/s, {overhead} overhead and {latency} latency per message"
        )
        for policy in ("fifo", "fusion", "bytescheduler", "dear", "carpool", "optimal"):
            found = bytelane.simulate(
                "resnet50",
                policy=policy,
                workers=8,
                bandwidth="25Gbit",
                overhead=overhead,
                latency=latency,
            )
            print(f"  {policy:<14}{found.iteration_s * 1e3:7.1f} ms")


if __name__ == "__main__":
    main()
