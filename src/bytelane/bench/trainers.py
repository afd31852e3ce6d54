"""Training loops of the contenders: DDP, FSDP2, Bytelane, communication alone."""

import time
from functools import cache, partial
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bytelane.bench.contender import ComputeOnly, Ddp, Fsdp, Ours
from bytelane.bench.coordinator import Coordinator, preferring_what_is_needed_first
from bytelane.bench.workload import Workload
from bytelane.cluster import Cluster, Link
from bytelane.core import (
    CreditWindow,
    Knobs,
    Operation,
    Plan,
    Planner,
    Policy,
    SubTask,
    choose_knobs,
    make_policy,
)
from bytelane.errors import NotSupported
from bytelane.job import Job
from bytelane.runtime.sync import Contribution, Engine
from bytelane.runtime.torch import Settings, attach
from bytelane.runtime.torch.control import GlooControl
from bytelane.runtime.torch.groups import Groups
from bytelane.runtime.torch.peers import meet
from bytelane.runtime.torch.planning import FIRST_ITERATIONS, FIRST_REVIEW
from bytelane.runtime.torch.transport import AllReduceTransport
from bytelane.sim import make_planner, simulate
from bytelane.tune import AutoPlanner
from bytelane.tune.auto import MOST_TRIALS
from bytelane.tune.probe import probe
from bytelane.tune.search import AS_GOOD

TIMEOUT_S = 120.0
# A plan is judged after some iterations, and the next begins one later, when all ranks know it.
CORRECTED_ITERATIONS = FIRST_ITERATIONS + MOST_TRIALS * (FIRST_REVIEW + 1)
UNITS = tuple(2**k for k in range(18, 23))
# Rank 0 decides at run time about no smaller units. The simulator would choose them, but measured
# they are slower: with 4 workers 717 ms per iteration instead of 672 ms, since every decision costs
# work on all ranks.
COORDINATED_UNITS = UNITS[1:]
IN_FLIGHT = (1, 2, 3, 4)


@cache
def our_groups() -> Groups:
    """Return the process groups of our contenders; all ranks must make the first call together.

    Contenders take turns, so they can share them. Each gloo group has a thread that wakes up 100
    times per second, also while other contenders are timed.
    """
    return Groups(meet(TIMEOUT_S), TIMEOUT_S)


class Trainer(Protocol):
    """A contender that can be timed."""

    def warm_up(self) -> None: ...

    def repeat(self, iterations: int) -> tuple[float, ...]: ...

    def is_exact(self) -> bool | None: ...


class PlainTrainer:
    """Computes and never synchronises; subclasses add synchronisation."""

    warm_up_iterations = 2

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.net = workload.model
        self.optimizer = self._make_optimizer()
        self.iterations = 0

    def warm_up(self) -> None:
        """Let everything be allocated, measured and planned."""
        for _ in range(self.warm_up_iterations):
            self._train_once()
        self.flush()

    def repeat(self, iterations: int) -> tuple[float, ...]:
        """Return the times of so many iterations, in the steady state."""
        self._train_once()  # no transfer overlaps with its beginning, so it is not counted
        starts = [time.perf_counter()]
        for _ in range(iterations):
            self._train_once()
            starts.append(time.perf_counter())
        self.flush()
        return tuple(b - a for a, b in pairwise(starts))

    def flush(self) -> None:
        """Wait for transfers under way."""

    def is_exact(self) -> bool | None:
        """Tell whether all weights are as expected; None if they are not synchronised."""
        return None

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.workload.model.parameters(), lr=self.workload.learning_rate)

    def _train_once(self) -> None:
        self.optimizer.zero_grad()
        self.workload.loss(self.net, self.iterations).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.iterations += 1


class DdpTrainer(PlainTrainer):
    """DistributedDataParallel as its documentation recommends it."""

    def __init__(self, workload: Workload, bucket_bytes: int) -> None:
        super().__init__(workload)
        self.net = DistributedDataParallel(
            workload.model, bucket_cap_mb=bucket_bytes / 2**20, gradient_as_bucket_view=True
        )

    def is_exact(self) -> bool:
        return self.workload.is_exact(_weights(self.workload.model), self.iterations)


class FsdpTrainer(PlainTrainer):
    """FSDP2, one unit per module, parameters kept from forward to backward."""

    def __init__(self, workload: Workload) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(workload)
        if any(len(tensor.layers) > 1 for tensor in workload.job.tensors):
            raise NotSupported("FSDP2 cannot shard layers that share a tensor")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for module in workload.model.children():
            if list(module.parameters()):
                fully_shard(module, mesh=mesh, reshard_after_forward=False)
        fully_shard(workload.model, mesh=mesh, reshard_after_forward=False)
        self.optimizer = self._make_optimizer()  # of the shards

    def is_exact(self) -> bool:
        from torch.distributed.tensor import DTensor

        whole = {}
        for name, parameter in self.workload.model.named_parameters():
            assert isinstance(parameter, DTensor)
            whole[name] = parameter.full_tensor()
        return self.workload.is_exact(whole, self.iterations)


class OurTrainer(PlainTrainer):
    """Bytelane."""

    def __init__(
        self,
        workload: Workload,
        planner: Planner,
        keep_iterations: int,
        **planning: Any,
    ) -> None:
        super().__init__(workload)
        # After the measured iterations one more is spent under the new plan before any is counted.
        planned_after = CORRECTED_ITERATIONS if planner.needs_network else FIRST_ITERATIONS
        self.warm_up_iterations = planned_after + 1
        session = attach(
            workload.model,
            [self.optimizer],
            Settings(
                planner,
                timeout_s=TIMEOUT_S,
                keep_iterations=self.warm_up_iterations + keep_iterations,
                **planning,
            ),
            shared=our_groups(),
        )
        assert session is not None
        self.session = session

    @property
    def knobs(self) -> Knobs:
        """The largest operation, and the credit."""
        plan = self.session.plan
        largest = max(operation.bytes for operation in plan.operations)
        return Knobs(largest, plan.window.credit_bytes)

    def schedule(self, cluster: Cluster) -> Plan | Policy:
        """Return the schedule for the simulator."""
        return self.session.plan

    def flush(self) -> None:
        self.session.flush()

    def is_exact(self) -> bool:
        return self.workload.is_exact(_weights(self.workload.model), self.iterations)


class CoordinatedTrainer(OurTrainer):
    """Bytelane, in an order that rank 0 decides while training runs."""

    def __init__(self, workload: Workload, policy: str, knobs: Knobs, keep_iterations: int) -> None:
        planner = preferring_what_is_needed_first(make_planner(policy, knobs))
        groups = our_groups()
        coordinator = Coordinator(GlooControl(groups, TIMEOUT_S))
        super().__init__(workload, planner, keep_iterations, make_engine=coordinator.make_engine)
        self._policy = partial(make_policy, policy, knobs=knobs)

    def schedule(self, cluster: Cluster) -> Policy:
        assert self.session.job is not None
        return self._policy(self.session.job, cluster)


def _weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


class CommunicationTrainer:
    """Sends all bytes at once, repeatedly."""

    def __init__(self, total_bytes: int) -> None:
        (group,) = our_groups().lanes(1)
        self._everything = torch.zeros(total_bytes // 4)
        self._engines = [_sending(total_bytes, unit, group) for unit in UNITS]

    def warm_up(self) -> None:
        """Find the best unit. All ranks agree, since a time is that of the slowest."""
        times = [median(self._time(*pair) for _ in range(2)) for pair in self._engines]
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        self._engines = [self._engines[int(slowest.argmin())]]

    def repeat(self, iterations: int) -> tuple[float, ...]:
        return tuple(self._time(*self._engines[0]) for _ in range(iterations))

    def is_exact(self) -> None:
        return None

    def _time(self, engine: Engine, transport: AllReduceTransport) -> float:
        dist.barrier()
        began = time.perf_counter()
        engine.begin_iteration()
        transport.begin_round(0, 0)
        transport.take([Contribution(0, self._everything)])
        engine.notify_ready(0)
        engine.wait([0])
        return time.perf_counter() - began


def _sending(total: int, unit: int, group: dist.ProcessGroup) -> tuple[Engine, AllReduceTransport]:
    cuts = [*range(0, total, unit), total]
    operations = tuple(Operation((SubTask(0, a, b),)) for a, b in pairwise(cuts))
    plan = Plan("communication only", (total,), operations, CreditWindow(2 * unit), barrier=True)
    transport = AllReduceTransport(plan, [torch.float32], [group], ["everything"])
    return Engine.of_plan(plan, transport, ("everything",), timeout_s=TIMEOUT_S), transport


def make_trainer(
    contender: ComputeOnly | Ddp | Fsdp | Ours, workload: Workload, link: Link, keep_iterations: int
) -> Trainer:
    """Build a contender; every rank must do so at the same time."""
    cluster = Cluster.star(dist.get_world_size(), link)
    match contender:
        case ComputeOnly():
            return PlainTrainer(workload)
        case Ddp(bucket_bytes):
            return DdpTrainer(workload, bucket_bytes)
        case Fsdp():
            return FsdpTrainer(workload)
        case Ours("auto", None, "by plan"):
            auto = AutoPlanner(say=lambda line: print(line, flush=True))
            return OurTrainer(workload, auto, keep_iterations, probe=probe)
        case Ours(policy, knobs, "by rank 0"):
            chosen = knobs or best_knobs(policy, workload.job, cluster, planned=False)
            return CoordinatedTrainer(workload, policy, chosen, keep_iterations)
        case Ours(policy, knobs, order):
            chosen = knobs or best_knobs(policy, workload.job, cluster)
            planner = make_planner(policy, chosen, in_ready_order=order == "as ready")
            return OurTrainer(workload, planner, keep_iterations)


@cache
def best_knobs(policy: str, job: Job, cluster: Cluster, *, planned: bool = True) -> Knobs:
    """Choose by simulation the part size and the credit that are best on this link.

    Of those that are about equally good the largest parts are taken, as ``auto`` does.
    """

    def iteration_s(knobs: Knobs) -> float:
        decided = make_policy(policy, job, cluster, knobs)
        schedule = make_planner(policy, knobs).plan(job) if planned else decided
        return simulate(job, cluster, schedule, "interpreted").iteration_s

    units = UNITS if planned else COORDINATED_UNITS
    own = choose_knobs(policy).own
    every = [Knobs(u, u * count, u, own=own) for u in reversed(units) for count in IN_FLIGHT]
    times_s = {knobs: iteration_s(knobs) for knobs in every}
    limit_s = AS_GOOD * min(times_s.values())
    return next(knobs for knobs in every if times_s[knobs] <= limit_s)
