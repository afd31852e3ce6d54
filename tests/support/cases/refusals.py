"""What is refused with a sentence, before training starts."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cases.arms import Arm
from cases.compare import Values
from cases.parts import prepared, sgd
from cases.registry import case


def refused(arm: Arm, model: nn.Module) -> Values:
    prepared(arm, model)
    return {}


@case(
    "lazy parameters",
    "refused",
    why="Run one batch through the model first.",
    says="run one batch through the model first",
    worlds=(2,),
)
def lazy(arm: Arm) -> Values:
    model = nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(3))
    arm.prepare(model, sgd(model[0].parameters()))
    return {}


@case(
    "parameters without memory (meta)",
    "refused",
    why="Give them memory first, with `to_empty` and an initialisation.",
    says="weight is on meta",
    worlds=(2,),
)
def meta(arm: Arm) -> Values:
    return refused(arm, nn.Linear(3, 3, device="meta"))


@case(
    "a model wrapped in DistributedDataParallel",
    "refused",
    why="It would be summed twice; give `prepare` the model inside.",
    says="give prepare() the model inside it",
    worlds=(2,),
)
def wrapped(arm: Arm) -> Values:
    return refused(arm, DistributedDataParallel(nn.Linear(3, 3)))


@case(
    "a model whose part is wrapped in DistributedDataParallel",
    "refused",
    why="As a model that is wrapped as a whole.",
    says="DistributedDataParallel",
    worlds=(2,),
)
def part_wrapped(arm: Arm) -> Values:
    return refused(arm, nn.Sequential(nn.Linear(3, 3), DistributedDataParallel(nn.Linear(3, 3))))


@case(
    "a sharded model (FSDP)",
    "refused",
    why="Each rank holds a part of the weights only.",
    ways=("fully_shard", "a part of it"),
    says="shard",
    worlds=(2,),
)
def sharded(arm: Arm, way: str) -> Values:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    mesh = init_device_mesh("cpu", (arm.world,))
    fully_shard(model if way == "fully_shard" else model[1], mesh=mesh)
    return refused(arm, model)


@case(
    "scripted and traced modules",
    "refused",
    why="They run without Python, where nothing can be waited for.",
    says="scripted or traced",
    ways=("scripted", "traced"),
    worlds=(2,),
)
def scripted(arm: Arm, way: str) -> Values:
    linear = nn.Linear(3, 3)
    made = (
        torch.jit.script(linear) if way == "scripted" else torch.jit.trace(linear, torch.ones(1, 3))
    )
    return refused(arm, nn.Sequential(made))


@case(
    "preparing a model twice",
    "refused",
    why="It would be summed twice.",
    says="prepared already",
    worlds=(2,),
)
def twice(arm: Arm) -> Values:
    model, _, optimizer = prepared(arm)
    arm.prepared = False
    arm.prepare(model, optimizer)
    return {}


class Wrapper:
    """Steps the optimizer inside it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner


@case(
    "an optimizer that wraps another (Lookahead, schedule-free)",
    "refused",
    why="Give `prepare` the optimizer inside, and step the wrapper as before.",
    says="give prepare() the SGD inside it, its attribute inner",
    worlds=(2,),
)
def wrapper(arm: Arm) -> Values:
    model = nn.Linear(3, 3)
    arm.prepare(model, Wrapper(sgd(model.parameters())))  # type: ignore[arg-type]
    return {}


@case(
    "parameters of another model in the optimizer",
    "refused",
    why="They would be stepped with gradients of one rank only.",
    says="that is not in the model",
    worlds=(2,),
)
def stranger(arm: Arm) -> Values:
    arm.prepare(nn.Linear(3, 3), sgd(nn.Linear(5, 2).parameters()))
    return {}
