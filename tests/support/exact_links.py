"""Links and times on which floating point is exact, and the simulator on them."""

from typing import Any

from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, make_policy, policies_for
from bytelane.job import Job, Layer, Tensor
from bytelane.sim import Simulation
from bytelane.sim import simulate as run_simulator

# A link of 8 bytes a second between two workers: a byte takes 1/8 s, exactly.
RATE = 8.0
knob_values = st.builds(Knobs, st.integers(1, 40), st.integers(1, 80), st.integers(1, 80))
eighths = st.integers(0, 8).map(lambda n: n / 8)
floors = st.just(0.0) | st.integers(0, 64).map(lambda n: n / 8)
all_reduce_policies = st.sampled_from(policies_for("allreduce"))
real_policies = st.sampled_from([p for p in policies_for("allreduce") if p != "optimal"])
server_policies = st.sampled_from([p for p in policies_for("ps") if p != "optimal"])


def cluster(theta: float = 0.0, lam: float = 0.0, floor: float = 0.0, **kind: Any) -> Cluster:
    """Two workers; also with servers a byte takes 1/8 s in each direction."""
    rate = RATE / 2 if kind.get("servers") else RATE
    link = Link(rate, theta, lam, floor, kind.pop("at_once", 2))
    return Cluster.star(kind.pop("workers", 2), link, **kind)


def simulate(
    job: Job, name: str, knobs: Knobs | None = None, on: Cluster | None = None, **kind: Any
) -> Simulation:
    where = on or cluster(**kind)
    return run_simulator(job, where, make_policy(name, job, where, knobs), "interpreted")


def three_layers() -> Job:
    """Forward and backward of 1 s each; the link needs 2, 2 and 3 s for the gradients."""
    return Job(
        "three",
        tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(3)),
        tuple(Tensor(f"l{i}", seconds * 8, (i,)) for i, seconds in enumerate((2, 2, 3))),
    )
