"""Who takes part in a benchmark. All of them train the same job in the same processes."""

from typing import TypeAlias

import msgspec

from bytelane.core import Knobs
from bytelane.errors import InputError
from bytelane.plugins import look_for
from bytelane.sim import make_planner
from bytelane.units import format_bytes

MEBIBYTE = 2**20


class ComputeOnly(msgspec.Struct, frozen=True, tag="compute"):
    """Nothing is sent: what an iteration would take on an infinitely fast network."""

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

    def __post_init__(self) -> None:
        look_for(self.policy)  # here, since ranks are processes of their own
        make_planner(self.policy, self.knobs or Knobs(1, 1, 1))  # refuses what cannot run for real

    @property
    def name(self) -> str:
        return f"bytelane, {self.policy}"


Contender: TypeAlias = ComputeOnly | CommunicationOnly | Ddp | Fsdp | Ours

BUCKETS = tuple(Ddp(mebibytes * MEBIBYTE) for mebibytes in (1, 2, 4, 8, 25))


def everyone(ours: Ours) -> tuple[Contender, ...]:
    """Return all baselines at their best settings, our ablation, and our scheduler."""
    ablation = (Ours("fifo", Knobs()),) if ours.policy != "fifo" else ()
    return ComputeOnly(), CommunicationOnly(), *BUCKETS, Fsdp(), *ablation, ours
