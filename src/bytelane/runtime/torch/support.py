"""What is not supported is refused here, before training starts, with what to do instead."""

from collections.abc import Iterator, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from bytelane.runtime.torch.trained import parameters_of

SUPPORTED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Stepping these for some parameters now and for the others later is bit-equal to one step (see
# tests/test_stepping.py). By exact type: AdamW has become a subclass of Adam, and a user's subclass
# may couple parameters.
SEPARABLE_OPTIMIZERS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.NAdam,
    torch.optim.Adafactor,
    torch.optim.Muon,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.RAdam,
    torch.optim.Rprop,
)


def first_problem(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Return the first thing that would go wrong silently, or an empty text."""
    return next(_problems(model, optimizers), "")


def is_separable(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the optimizer may be stepped for some parameters before the others."""
    return type(optimizer) in SEPARABLE_OPTIMIZERS


def _problems(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[str]:
    for path, module in model.named_modules():
        name = path or "the model"
        if isinstance(module, DistributedDataParallel):
            wrapper = "DistributedDataParallel"
            yield f"{name} is wrapped in {wrapper}; give prepare() the model inside it"
        if type(module).__name__ == "FullyShardedDataParallel" or hasattr(module, "reshard"):
            yield f"{name} is sharded by FSDP; give prepare() the plain module"
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            yield f"{name} has sparse gradients; build it with sparse=False"
        if isinstance(module, torch.jit.ScriptModule):
            yield f"{name} is scripted or traced; give prepare() the plain module"
    yield from _parameter_problems(model, optimizers)


def _parameter_problems(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> Iterator[str]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in trained.items():
        lazy: bool = torch.nn.parameter.is_lazy(parameter)
        if lazy:
            yield f"{name} is a lazy parameter; run one batch through the model first"
        if parameter.device.type != "cpu":
            yield f"{name} is on {parameter.device}; only CPU tensors are supported so far"
        if parameter.dtype not in SUPPORTED_DTYPES:
            yield f"{name} is {parameter.dtype}; float16, bfloat16, float32 and float64 are fine"
    known = {id(p) for p in model.parameters()}
    strangers = [p for o in optimizers for p in parameters_of(o) if id(p) not in known]
    if strangers:
        shape = tuple(strangers[0].shape)
        yield f"the optimizer holds a parameter of shape {shape} that is not in the model"
