"""Plan by simulating: run the policy in virtual time and write down what it launches."""

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, Plan, Planner, make_policy
from bytelane.job import Job
from bytelane.sim.engine import simulate

# Planned as if communication took this much of the computing time, whatever the real rate is, an
# order stays within a few per cent of the best one at every rate; planned at a wrong rate it does
# not. Measured on ResNet-50's shape; searching the ratio is the tuner's work.
PLANNING_RATIO = 1.1

# Cut between elements: no element of a supported dtype is larger than this.
ALIGNMENT = 8


def make_planner(policy: str, knobs: Knobs) -> Planner:
    """Return a planner that simulates the measured job under this policy."""
    part = max(ALIGNMENT, knobs.partition_bytes - knobs.partition_bytes % ALIGNMENT)
    aligned = Knobs(part, knobs.credit_bytes)

    def plan(job: Job, version: int) -> Plan:
        # Two workers put every byte on the wire once, so this rate makes the ratio.
        link = Link(job.total_bytes / (PLANNING_RATIO * max(job.compute_s, 1e-9)))
        # Interpreted: one simulation is milliseconds, and loading the compiler would be a second.
        found = simulate(job, Cluster(2, link), make_policy(policy, job, aligned), "interpreted")
        return found.plan(version)

    return plan
