"""The contenders of a benchmark: DDP, FSDP2, Bytelane, computing or communication alone.

All of them train the same job in the same processes.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, choose_knobs, make_policy, policies_for
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor
from bytelane.plugins import look_for
from bytelane.sim import make_planner
from bytelane.units import format_bytes

MEBIBYTE = 2**20
AUTO = "auto"
Order: TypeAlias = Literal["by plan", "as ready", "by rank 0"]
ABLATIONS: Mapping[Order, str] = {"as ready": " in ready order", "by rank 0": " ordered by rank 0"}
# A contender that takes this many times as long as the fastest is not repeated. Nor is a bucket
# size of DDP that is so much slower than the best one; repetitions differ by far less.
FAR_BEHIND, WORSE_BUCKET = 2.0, 1.15
# To find out whether a policy overtakes, and its stages.
TWO_LAYERS = Job(
    "two layers",
    (Layer("first", 1.0, 1.0), Layer("last", 1.0, 1.0)),
    (Tensor("first", 8, (0,)), Tensor("last", 8, (1,))),
)


class ComputeOnly(msgspec.Struct, frozen=True, tag="compute"):
    """Nothing is sent: the iteration time on an infinitely fast network."""

    @property
    def name(self) -> str:
        return "compute only"


class CommunicationOnly(msgspec.Struct, frozen=True, tag="communication"):
    """Nothing is computed: all bytes at once, in the units that turn out best."""

    @property
    def name(self) -> str:
        return "communication only"


class Ddp(msgspec.Struct, frozen=True, tag="ddp"):
    """PyTorch's DistributedDataParallel."""

    bucket_bytes: int

    def __post_init__(self) -> None:
        if self.bucket_bytes < 1:
            raise InputError(f"a bucket of {self.bucket_bytes} bytes holds nothing; use 1 or more")

    @property
    def name(self) -> str:
        return f"DDP, {format_bytes(self.bucket_bytes)} buckets"


class Fsdp(msgspec.Struct, frozen=True, tag="fsdp"):
    """PyTorch's fully_shard (FSDP2), which keeps parameters after the forward pass."""

    @property
    def name(self) -> str:
        return "FSDP2"


class Ours(msgspec.Struct, frozen=True, tag="bytelane"):
    """Bytelane with one policy. Knobs that are None are chosen by simulation, in the run."""

    policy: str
    knobs: Knobs | None
    order: Order = "by plan"
    """Any other order is an ablation of the same engine: no operation overtakes another (unit size
    and window stay the same), or rank 0 decides while training runs."""

    def __post_init__(self) -> None:
        if self.policy == AUTO:
            if self.knobs is not None or self.order == "by rank 0":
                raise InputError(f"policy {AUTO} chooses pieces and order itself; give none")
            return
        look_for(self.policy)  # here, since ranks are processes of their own
        # Refuses a policy that cannot be run.
        make_planner(self.policy, self.knobs or choose_knobs(self.policy))
        if self.order != "by plan" and not overtakes(self.policy):
            raise InputError(f"policy {self.policy} sends in ready order by itself")

    @property
    def name(self) -> str:
        return f"bytelane, {self.policy}{ABLATIONS.get(self.order, '')}"


def overtakes(policy: str) -> bool:
    """Tell whether a gradient may go before another that was ready earlier."""
    first, last = make_policy(policy, TWO_LAYERS, Cluster.star(2, Link(1.0))).stages[0].priority
    return first < last


def in_halves(contender: "Contender") -> bool:
    """Tell whether every operation is a reduce-scatter and then an all-gather, by our own ring."""
    if not isinstance(contender, Ours) or contender.policy == AUTO:
        return False
    return len(make_policy(contender.policy, TWO_LAYERS, Cluster.star(2, Link(1.0))).stages) == 2


Contender: TypeAlias = ComputeOnly | CommunicationOnly | Ddp | Fsdp | Ours

BUCKETS = tuple(Ddp(mebibytes * MEBIBYTE) for mebibytes in (1, 2, 4, 8, 25))


def everyone(ours: Ours, *others: Ours) -> tuple[Contender, ...]:
    """Return all baselines at their best settings, our scheduler, and its ablations.

    ``others`` are policies to stand beside it, without ablations of their own.
    """
    ablations: tuple[Ours, ...] = ()
    if ours.policy == AUTO:
        ablations = Ours(AUTO, None, "as ready"), Ours("units", None, "by rank 0")
    elif overtakes(ours.policy):
        ablations = tuple(replace(ours, order=order) for order in ABLATIONS)
    return ComputeOnly(), CommunicationOnly(), *BUCKETS, Fsdp(), *others, ours, *ablations


def with_pieces_of_auto(contender: Contender, chosen: Knobs) -> Contender:
    """Give the ablation of ``auto`` in ready order the pieces that ``auto`` has chosen."""
    if contender == Ours(AUTO, None, "as ready"):
        return Ours("units", chosen, "as ready")
    return contender


def real_policies() -> tuple[str, ...]:
    """Return the names of all policies that can be run, ``auto`` first."""

    def is_real(name: str) -> bool:
        try:
            Ours(name, None)
        except InputError:
            return False
        return True

    return AUTO, *filter(is_real, policies_for("allreduce"))


def far_behind(seconds: Mapping[Contender, float]) -> frozenset[Contender]:
    """Return the contenders that are not repeated, from an iteration of the first repetition."""
    alone = (ComputeOnly, CommunicationOnly)
    trained: dict[Contender, float] = {c: s for c, s in seconds.items() if not isinstance(c, alone)}
    buckets: dict[Contender, float] = {c: s for c, s in trained.items() if isinstance(c, Ddp)}
    return _slower(trained, FAR_BEHIND) | _slower(buckets, WORSE_BUCKET)


def _slower(seconds: Mapping[Contender, float], factor: float) -> frozenset[Contender]:
    limit = factor * min(seconds.values(), default=0.0)
    return frozenset(c for c, s in seconds.items() if s > limit)
