"""Training runs in contexts drawn at random: around forward, backward and step, and between them.

One seed is one run. Every update of our arm is late (nothing counts as arrived when ``step()``
asks), so it is made inside whatever the next forward pass or the next look is in.
``python tests/soak/training.py --contexts --seed 7`` runs a seed again and shows what it is.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from bytelane.runtime.sync import Engine
from cases.arms import FEATURES, Arm, Ddp, Ours
from cases.compare import LOCAL, Values, differences
from cases.parts import chain, matrices, state_of, weights
from cases.trial import drop_models
from random_models import unequal_ranks

STEPS = 7

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.9),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.005),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.02),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.02),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


# --- contexts -------------------------------------------------------------------------------------


class Operations(TorchDispatchMode):
    """Counts the operations that a dispatch mode sees."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Counts the torch functions that a function mode sees."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def _set_for_now(
    read: Callable[[], Any], write: Callable[[Any], Any], value: Any
) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def _deterministic() -> AbstractContextManager[None]:
    return _set_for_now(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    )


def _default_float64() -> AbstractContextManager[None]:
    return _set_for_now(torch.get_default_dtype, torch.set_default_dtype, torch.float64)


@contextmanager
def _autocast_within_autocast() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        yield


Context = Callable[[Counter[str]], AbstractContextManager[Any]]

CONTEXTS: dict[str, Context] = {
    "nothing": lambda seen: nullcontext(),
    "autocast to bfloat16": lambda seen: torch.autocast("cpu", torch.bfloat16),
    "autocast to float16": lambda seen: torch.autocast("cpu", torch.float16),
    "autocast without cache": lambda seen: torch.autocast(
        "cpu", torch.bfloat16, cache_enabled=False
    ),
    "autocast off within autocast": lambda seen: _autocast_within_autocast(),
    "default float64": lambda seen: _default_float64(),
    "default device": lambda seen: torch.device("cpu"),
    "deterministic algorithms": lambda seen: _deterministic(),
    "anomaly detection": lambda seen: _set_for_now(
        torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True
    ),
    "saved-tensor hooks": lambda seen: torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.clone(), lambda packed: packed
    ),
    "dispatch mode": Operations,
    "function mode": Functions,
    "flop counter": lambda seen: FlopCounterMode(display=False),
    "one thread": lambda seen: _set_for_now(torch.get_num_threads, torch.set_num_threads, 1),
}
# Around everything go those in which all looks below can be had.
AROUND_ALL = ("default device", "deterministic algorithms", "anomaly detection")
AROUND_ALL += ("function mode", "one thread")
# These end the recording of gradients, so they go around the optimizer only.
AROUND_STEP: dict[str, Context] = {
    **CONTEXTS,
    "no_grad": lambda seen: torch.no_grad(),
    "inference mode": lambda seen: torch.inference_mode(),
}


# --- looks between two iterations -----------------------------------------------------------------


def _inputs(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(3, FEATURES, generator=generator, dtype=torch.float32)


def _traced(model: nn.Module, step: int) -> Any:
    traced = torch.jit.trace(model, _inputs(step))
    return traced(_inputs(step + 1)) + traced(_inputs(step))


def _evaluated_in(context: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    def look(model: nn.Module, step: int) -> Any:
        with context():
            return model(_inputs(step)).clone()

    return look


def _per_sample_gradients(model: nn.Module, step: int) -> Any:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(model, parameters, (x,)).square().sum()
        return found

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, _inputs(step))
    return torch.cat([g.flatten() for g in gradients.values()])


def _exported(model: nn.Module, step: int) -> Any:
    program = torch.export.export(model, (_inputs(step),))
    return program.module()(_inputs(step + 1)).detach()


def _called_with_other_parameters(model: nn.Module, step: int) -> Any:
    others = {name: nn.Parameter(p.detach() * 2) for name, p in model.named_parameters()}
    found: torch.Tensor = torch.func.functional_call(model, others, (_inputs(step),))
    return found.detach()


def _gradient_of_the_weights_themselves(model: nn.Module, step: int) -> Any:
    parameters = dict(model.named_parameters())
    found = torch.func.grad(lambda ps: sum((p**3).sum() for p in ps.values()))(parameters)
    return torch.cat([g.flatten() for g in found.values()]).detach()


LOOKS: dict[str, Callable[[nn.Module, int], Any]] = {
    "nothing": lambda model, step: 0.0,
    "jit.trace": _traced,
    "make_fx": lambda model, step: make_fx(model)(_inputs(step))(_inputs(step + 1)).detach(),
    "vmap": lambda model, step: torch.func.vmap(model)(_inputs(step)).detach(),
    "jvp": lambda model, step: torch.func.jvp(model, (_inputs(step),), (_inputs(step),))[
        1
    ].detach(),
    "per-sample gradients": _per_sample_gradients,
    "torch.export": _exported,
    "functional_call": _called_with_other_parameters,
    "func.grad of the weights": _gradient_of_the_weights_themselves,
    "inference mode": _evaluated_in(torch.inference_mode),
    "no_grad under autocast": _evaluated_in(lambda: torch.autocast("cpu", torch.bfloat16)),
    "default device": _evaluated_in(lambda: torch.device("cpu")),
}


# --- a run ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """All that a seed decides; contexts and looks are drawn anew for every step."""

    seed: int
    optimizer: str
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    step: tuple[str, ...]
    whole: str
    looks: tuple[str, ...]


def draw(seed: int) -> Drawn:
    """Decide everything from the seed."""
    chance = Random(seed)

    def contexts(known: dict[str, Any]) -> tuple[str, ...]:
        if chance.random() < 0.4:
            return ("nothing",) * STEPS
        few = chance.sample(list(known), 2)
        if "inference mode" in few:  # an optimizer's state is of that mode for ever
            return ("inference mode",) * STEPS
        return tuple(chance.choice(few) for _ in range(STEPS))

    return Drawn(
        seed,
        chance.choice(list(OPTIMIZERS)),
        contexts(CONTEXTS),
        contexts(CONTEXTS),
        contexts(AROUND_STEP),
        chance.choice(["nothing"] * 6 + [*AROUND_ALL]),
        tuple(chance.choice(["nothing", *LOOKS]) for _ in range(STEPS)),
    )


@contextmanager
def nothing_arrives_early() -> Iterator[None]:
    """Let ``step()`` find that nothing has arrived: every update is a late one."""
    honest = Engine.arrived

    def arrived(engine: Engine, tensors: Any) -> list[int]:
        honest(engine, [])  # it raises what has gone wrong
        return []

    Engine.arrived = arrived  # type: ignore[method-assign]
    try:
        yield
    finally:
        Engine.arrived = honest  # type: ignore[method-assign]


def judge(rank: int, seed: int) -> list[str]:
    """Train what a seed draws by DDP and by us; say what differs."""
    drawn, world = draw(seed), dist.get_world_size()
    with redirect_stdout(io.StringIO()), nothing_arrives_early():
        ours, counted = train(drawn, Ours(rank, world))
    told = differences(ours, train(drawn, Ddp(rank, world))[0])
    # Of DDP's own operations modes see some; of ours they see none.
    plain = train(drawn, Arm(rank, world))[1]
    told += [
        f"step {step}: a mode saw {mine} instead of {expected}"
        for step, (mine, expected) in enumerate(zip(counted, plain, strict=True))
        if mine != expected
    ]
    drop_models()
    return told + unequal_ranks(ours)


def how_to_repeat(seed: int, world: int) -> str:
    """Say what a seed has drawn, and how to run only it."""
    again = f"python tests/soak/training.py --contexts --seed {seed} --ranks {world}"
    return f"{draw(seed)}\nagain: {again}"


def train(drawn: Drawn, arm: Arm) -> tuple[Values, list[Counter[str]]]:
    """Run what was drawn by one arm; return results, and what modes have seen in each step."""
    torch.manual_seed(drawn.seed)
    model = matrices() if drawn.optimizer == "Muon" else chain()
    optimizer = OPTIMIZERS[drawn.optimizer](model.parameters())
    net = arm.prepare(model, optimizer)
    looks: Values = {}
    counted: list[Counter[str]] = []
    with CONTEXTS[drawn.whole](Counter()):
        for step in range(STEPS):
            counted.append(_iterate(drawn, arm, net, optimizer, step))
            looks[f"{LOCAL}look {step}"] = LOOKS[drawn.looks[step]](model, step)
    return weights(model) | state_of(optimizer) | looks, counted


def _iterate(
    drawn: Drawn, arm: Arm, net: Any, optimizer: torch.optim.Optimizer, step: int
) -> Counter[str]:
    counted: Counter[str] = Counter()
    optimizer.zero_grad()
    inputs, targets = arm.batch(step)
    with CONTEXTS[drawn.forward[step]](counted):
        output = net(inputs)
    loss = nn.functional.cross_entropy(output.float(), targets)
    with CONTEXTS[drawn.backward[step]](counted):
        loss.backward()
    with AROUND_STEP[drawn.step[step]](counted):
        optimizer.step()
    return counted
