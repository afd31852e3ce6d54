"""Declare a knob of your own: how many tensors share a message.

    python examples/own_knob.py             # the same job with several values of the knob

The knob is declared once, in the file of the policy that reads it.
"""

import bytelane
from bytelane.cluster import Cluster
from bytelane.core import Groups, Knob, Knobs, Policy, Stage, register
from bytelane.job import Job

CARS = Knob("cars", "Tensors per message.", default=4, kind="count", most=256, usual=(1, 4, 16, 64))


@register("platoon", sync=("allreduce",), knobs=[CARS])
def platoon(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send ``cars`` neighbouring tensors per message, the most urgent message first."""
    cars = int(knobs["cars"])
    by_readiness = sorted(range(len(job.tensors)), key=lambda t: -job.tensors[t].complete_after)
    groups = [0] * len(job.tensors)
    for place, tensor in enumerate(by_readiness):
        groups[tensor] = place // cars
    urgency = tuple(tensor.needed_by for tensor in job.tensors)
    stage = Stage("all-reduce", urgency)
    return Policy("platoon", (stage,), barrier=False, cutting=Groups(tuple(groups)))


def main() -> None:
    for cars in CARS.usual:
        found = bytelane.simulate(
            "resnet50", policy="platoon", cars=cars, workers=8, overhead="200us", latency="300us"
        )
        print(f"{cars:>2} tensors per message: {found.iteration_s * 1e3:5.1f} ms")


if __name__ == "__main__":
    main()
