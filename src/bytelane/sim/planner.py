"""Plan by simulating: run the policy in virtual time and write down what it launches."""

import msgspec

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, Plan, Planner, make_policy, require_lanes, require_plannable
from bytelane.job import Job, Layer, Tensor
from bytelane.sim.engine import simulate
from bytelane.units import FASTEST_RATE, SLOWEST_RATE

# Planned as if communication took this much of the computing time, whatever the real rate is, an
# order stays within a few per cent of the best one at every rate; planned at a wrong rate it does
# not. Measured on ResNet-50's shape; searching the ratio is the tuner's work.
PLANNING_RATIO = 1.1

# Cut between elements: no element of a supported dtype is larger than this.
ALIGNMENT = 8


def make_planner(
    policy: str,
    knobs: Knobs,
    barrier: bool | None = None,
    *,
    in_ready_order: bool = False,
    ratio: float = PLANNING_RATIO,
    lanes: int = 1,
) -> Planner:
    """Return a planner that simulates the measured job under this policy.

    With ``barrier`` the plan is the same, but whether a step waits for all is decided by that.
    ``in_ready_order`` takes its order away from the policy, and nothing else. ``ratio`` is how much
    of the computing time communication is taken to last. ``lanes`` carry the operations by turns.
    """
    _require_plannable(policy)
    require_lanes(lanes)
    aligned = msgspec.structs.replace(
        knobs,
        partition_bytes=_aligned(knobs.partition_bytes),
        first_bytes=_aligned(knobs.first_bytes),
    )

    def plan(job: Job, version: int, cluster: Cluster | None = None) -> Plan:
        # Two workers put every byte on the wire once, so this rate makes the ratio.
        rate = job.total_bytes / (ratio * max(job.compute_s, 1e-9))
        link = Link(min(max(rate, SLOWEST_RATE), FASTEST_RATE))
        # Interpreted: one simulation is milliseconds, and loading the compiler would be a second.
        two = Cluster(2, link)
        schedule = make_policy(policy, job, two, aligned)
        if in_ready_order:
            schedule = schedule.in_ready_order(job)
        made = simulate(job, two, schedule, "interpreted").plan(version).on_lanes(lanes)
        return made if barrier is None else msgspec.structs.replace(made, barrier=barrier)

    return plan


def _aligned(size: int | None) -> int | None:
    return None if size is None else max(ALIGNMENT, size - size % ALIGNMENT)


def _require_plannable(policy: str) -> None:
    """Refuse now what would fail on one rank, after three iterations."""
    job = Job("one layer", (Layer("layer", 1.0, 1.0),), (Tensor("tensor", 8, (0,)),))
    require_plannable(make_policy(policy, job, Cluster(2, Link(1.0))))
