"""Planner by simulation: run the policy in virtual time and record its launch order as a plan."""

import msgspec

from bytelane.cluster import Cluster, Link
from bytelane.core import (
    Knobs,
    Plan,
    Planner,
    Setting,
    make_policy,
    require_lanes,
    require_plannable,
)
from bytelane.job import Job, Layer, Tensor
from bytelane.sim.engine import simulate
from bytelane.units import FASTEST_RATE, SLOWEST_RATE

# An order planned as if communication took this many times as long as computing stays within a few
# per cent of the best one at every real rate; one planned at a wrong rate does not. Measured on
# ResNet-50's shape; searching the ratio is the tuner's work.
PLANNING_RATIO = 1.1

# Cut between elements: no element of a supported dtype is larger than this.
ALIGNMENT = 8
_ONE_LAYER = Job("one layer", (Layer("layer", 1.0, 1.0),), (Tensor("tensor", 8, (0,)),))


class PolicyPlanner(Planner):
    """Plans by simulating the measured job under a setting, at the rate that gives its ratio."""

    def __init__(self, setting: Setting, barrier: bool | None = None, lanes: int = 1) -> None:
        _require_plannable(setting.policy)
        require_lanes(lanes)
        self.name = setting.policy
        self.setting = setting
        self._knobs = msgspec.structs.replace(
            setting.knobs,
            partition_bytes=_aligned(setting.knobs.partition_bytes),
            first_bytes=_aligned(setting.knobs.first_bytes),
        )
        self._barrier = barrier
        self._lanes = lanes

    def plan(self, job: Job, cluster: Cluster | None = None, version: int = 1) -> Plan:
        # Two workers put every byte on the wire once, so this rate gives the ratio.
        ratio = PLANNING_RATIO if self.setting.ratio is None else self.setting.ratio
        rate = job.total_bytes / (ratio * max(job.compute_s, 1e-9))
        two = Cluster.star(2, Link(min(max(rate, SLOWEST_RATE), FASTEST_RATE)))
        schedule = make_policy(self.name, job, two, self._knobs)
        if self.setting.in_ready_order:
            schedule = schedule.in_ready_order(job)
        # Interpreted: one simulation takes milliseconds, loading the compiler would take 1 s.
        made = simulate(job, two, schedule, "interpreted").plan(version).on_lanes(self._lanes)
        if self._barrier is None:
            return made
        return msgspec.structs.replace(made, barrier=self._barrier)


class ServerPlanner(Planner):
    """Lets every rank decide by a policy: what it pushes to servers, and what they send back."""

    def __init__(self, setting: Setting, barrier: bool | None = None, name: str = "") -> None:
        self.name = name or setting.policy
        self.setting = setting
        self._barrier = barrier
        self.plan(_ONE_LAYER)  # refuse now what would fail after 3 iterations

    def plan(self, job: Job, cluster: Cluster | None = None, version: int = 1) -> Plan:
        rate = job.total_bytes / (PLANNING_RATIO * max(job.compute_s, 1e-9))
        two = Cluster.star(2, Link(min(max(rate, SLOWEST_RATE), FASTEST_RATE)), servers=2)
        policy = make_policy(self.setting.policy, job, two, self.setting.knobs)
        if self._barrier is not None:
            policy = msgspec.structs.replace(policy, barrier=self._barrier)
        return Plan.deciding_locally(policy, job, version)


def make_planner(
    policy: str,
    knobs: Knobs,
    barrier: bool | None = None,
    *,
    in_ready_order: bool = False,
    ratio: float | None = None,
    lanes: int = 1,
) -> PolicyPlanner:
    """Return a planner that simulates the measured job under this policy.

    ``barrier``, if given, overrides the policy's barrier. ``in_ready_order`` drops the policy's
    order, and nothing else. ``ratio`` is the communication time to plan for, over the computing
    time. The operations go round-robin over ``lanes``.
    """
    return PolicyPlanner(Setting(policy, knobs, ratio, in_ready_order), barrier, lanes)


def _aligned(size: int | None) -> int | None:
    return None if size is None else max(ALIGNMENT, size - size % ALIGNMENT)


def _require_plannable(policy: str) -> None:
    """Refuse a policy now that would fail on one rank after 3 iterations."""
    require_plannable(make_policy(policy, _ONE_LAYER, Cluster.star(2, Link(1.0))))
