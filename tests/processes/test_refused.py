"""What is not supported yet is refused with a sentence, never done wrong."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bytelane
from bytelane.errors import InputError, NotSupported, PeerFailed, PlanMismatch
from ranks import Pool
from training import equal, make, train, weights


def sgd(*models: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)


def lazy() -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LazyLinear(3))
    return model, torch.optim.SGD(model[0].parameters(), lr=0.1)


class Lookahead:
    """Steps the optimizer inside it, and draws the weights back now and then."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.fast = optimizer
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        self.steps = 0

    @property
    def param_groups(self) -> Any:
        return self.fast.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.fast.zero_grad(set_to_none)

    def step(self) -> None:
        self.fast.step()
        self.steps += 1
        fast = [p for group in self.param_groups for p in group["params"]]
        for slow, own in zip(self.slow, fast, strict=True) if self.steps % 3 == 0 else ():
            slow.add_(own.detach() - slow, alpha=0.5)
            own.data.copy_(slow)


class Disguised(torch.optim.Optimizer):
    """An Optimizer by name: all but its step is that of the optimizer inside it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.base = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)


class HalfDone(torch.optim.Optimizer):
    """Has groups and hooks of its own, but nothing that would call them."""

    def __init__(self, params: Any) -> None:
        self.param_groups = [{"params": list(params), "lr": 0.1}]
        for name in ("step_pre", "step_post", "state_dict_pre", "load_state_dict_pre"):
            setattr(self, f"_optimizer_{name}_hooks", {})

    def step(self, closure: Any = None) -> None:
        pass


def optimizers(make: Callable[[torch.nn.Module], Any]) -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    return model, make(model)


def made_in_inference_mode() -> tuple[Any, Any]:
    with torch.inference_mode():
        model = torch.nn.Linear(3, 3)
    return model, sgd(torch.nn.Linear(3, 3))


def part_of_a_prepared_model() -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    KEPT[:] = bytelane.prepare(model, sgd(model))
    return model[1], sgd(model[1])


KEPT: list[Any] = []


def with_optimizer(model: torch.nn.Module) -> tuple[Any, Any]:
    return model, sgd(model)


BEFORE_TRAINING: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "wrapped": (
        lambda: with_optimizer(DistributedDataParallel(torch.nn.Linear(3, 3))),
        "give prepare() the model inside it",
    ),
    "sparse": (
        lambda: with_optimizer(torch.nn.Embedding(4, 4, sparse=True)),
        "the model has sparse gradients",
    ),
    "traced": (
        lambda: with_optimizer(
            torch.nn.Sequential(torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(1, 3)))
        ),
        "0 is scripted or traced",
    ),
    "complex": (
        lambda: with_optimizer(torch.nn.Linear(3, 3, dtype=torch.complex64)),
        "weight is torch.complex64",
    ),
    "lazy": (lazy, "1.weight is a lazy parameter"),
    "meta": (lambda: with_optimizer(torch.nn.Linear(3, 3, device="meta")), "weight is on meta"),
    "a stranger": (
        lambda: (torch.nn.Linear(3, 3), sgd(torch.nn.Linear(5, 2))),
        "shape (2, 5) that is not in the model",
    ),
    "an optimizer that wraps another": (
        lambda: optimizers(lambda model: Lookahead(sgd(model))),
        "Lookahead is no torch.optim.Optimizer; give prepare() the SGD inside it, its attribute "
        "fast, and step the Lookahead as before",
    ),
    "an Optimizer that wraps another": (
        lambda: optimizers(lambda model: Disguised(sgd(model))),
        "Disguised does not call torch.optim.Optimizer.__init__, so its step() runs no hooks; "
        "give prepare() the SGD inside it, its attribute base",
    ),
    "an Optimizer that was not initialised": (
        lambda: optimizers(lambda model: HalfDone(model.parameters())),
        "HalfDone does not call torch.optim.Optimizer.__init__",
    ),
    "a schedule": (
        lambda: optimizers(lambda model: torch.optim.lr_scheduler.StepLR(sgd(model), 1)),
        "StepLR is no torch.optim.Optimizer; give prepare() the SGD inside it, its attribute "
        "optimizer",
    ),
    "a list with something else": (
        lambda: optimizers(lambda model: [sgd(model), None]),
        "NoneType is no torch.optim.Optimizer; give prepare() the optimizer itself",
    ),
    "the same optimizer twice": (
        lambda: optimizers(lambda model: [sgd(model)] * 2),
        "the same SGD is given twice",
    ),
    "model and optimizer exchanged": (
        lambda: optimizers(sgd)[::-1],
        "SGD is no torch.nn.Module; give prepare() a model, then its optimizer",
    ),
    "inference mode": (made_in_inference_mode, "weight was made in inference_mode"),
    "a part of a prepared model": (
        part_of_a_prepared_model,
        "weight is trained by a model that is prepared already",
    ),
}


def state_of(*objects: Any) -> list[Any]:
    """Everything that prepare() may put on these and on what they hold."""
    found: list[Any] = []
    for thing in objects:
        if isinstance(thing, list):
            found += state_of(*thing)
        elif isinstance(thing, torch.nn.Module):
            found += [_attributes(module) for module in thing.modules()]
        elif hasattr(thing, "__dict__"):
            found += [_attributes(thing), *state_of(*_optimizers_in(thing))]
    return found


def _optimizers_in(thing: Any) -> list[Any]:
    return [one for one in vars(thing).values() if isinstance(one, torch.optim.Optimizer)]


def _attributes(thing: Any) -> dict[str, Any]:
    return {
        name: list(value) if name.endswith("_hooks") else id(value)
        for name, value in vars(thing).items()
    }


def refused_before(rank: int, case: str) -> tuple[str, bool]:
    model, optimizer = BEFORE_TRAINING[case][0]()
    before = state_of(model, optimizer)
    try:
        bytelane.prepare(model, optimizer)
    except NotSupported as error:
        return str(error), state_of(model, optimizer) == before
    return "accepted", False


@pytest.mark.parametrize("case", BEFORE_TRAINING)
def test_refused_before_training_starts_and_nothing_is_changed(two_ranks: Pool, case: str) -> None:
    for message, unchanged in two_ranks.run(refused_before, case=case):
        assert BEFORE_TRAINING[case][1] in message
        assert unchanged


class Stubborn(torch.optim.SGD):
    """Registers what it is given, but for the last."""

    def register_load_state_dict_pre_hook(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not here")


def fails_half_way(rank: int, compiled: bool) -> bool:
    model, _ = make()
    called = torch.compile(model, backend="eager") if compiled else model
    optimizer = Stubborn(model.parameters(), lr=0.1)
    before = state_of(called, optimizer)
    with pytest.raises(RuntimeError, match="not here"):
        bytelane.prepare(called, optimizer)
    return state_of(called, optimizer) == before


@pytest.mark.parametrize("compiled", [False, True])
def test_whatever_goes_wrong_in_prepare_leaves_no_hook_behind(
    two_ranks: Pool, compiled: bool
) -> None:
    assert two_ranks.run(fails_half_way, compiled=compiled) == [True, True]


def wrapped_optimizer(rank: int, kind: type, inner: str) -> bool:
    def run(ours: bool) -> list[torch.Tensor]:
        net, fast = make("chain", inner)
        if ours:
            bytelane.prepare(net, fast, policy="bytescheduler", partition="1KiB", timeout_s=20)
        train(net if ours else DistributedDataParallel(net), kind(fast), rank, steps=8)
        return weights(net)

    return equal(run(True), run(False))


@pytest.mark.parametrize("inner", ["momentum", "adamw"])
@pytest.mark.parametrize("kind", [Lookahead, Disguised])
def test_the_optimizer_inside_a_wrapper_can_be_prepared_as_the_refusal_says(
    two_ranks: Pool, kind: type, inner: str
) -> None:
    assert two_ranks.run(wrapped_optimizer, kind=kind, inner=inner) == [True, True]


def scripted(rank: int) -> list[str]:
    model, optimizer = make("chain")
    bytelane.prepare(model, optimizer, timeout_s=20)
    said = []
    for one in (model, model[0], torch.nn.Sequential(model), copy.deepcopy(model)):
        with pytest.raises(NotSupported) as refused:
            torch.jit.script(one)
        said.append(str(refused.value))
    plain, _ = make("chain")
    plain.load_state_dict(model.state_dict())
    torch.jit.script(plain)
    return said


def test_scripting_a_prepared_model_is_refused_with_a_sentence(two_ranks: Pool) -> None:
    for said in two_ranks.run(scripted):
        assert len(said) == 4
        assert all("script that one" in one for one in said)


@pytest.mark.parametrize("case", ["an optimizer that wraps another", "the same optimizer twice"])
def test_what_is_no_optimizer_is_refused_with_one_worker_too(case: str) -> None:
    make_both, complaint = BEFORE_TRAINING[case]
    with pytest.raises(NotSupported) as refused:
        bytelane.prepare(*make_both())
    assert complaint in str(refused.value)


def prepared_twice(rank: int, net: Any, opt: Any) -> None:
    bytelane.prepare(net, opt)


def another_thread(rank: int, net: Any, opt: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(train, net, opt, rank, steps=1).result()


def hiding_hook(rank: int, net: Any, opt: Any) -> None:
    def hide(parameter: torch.Tensor) -> None:
        parameter.grad = None

    net[5].bias.register_post_accumulate_grad_hook(hide)
    train(net, opt, rank, steps=1)


def looking_within_backward(rank: int, net: Any, opt: Any) -> None:
    net[0].bias.register_hook(lambda _: print(len(net.state_dict())))
    train(net, opt, rank, steps=1)


WHILE_TRAINING: dict[str, tuple[Callable[[int, Any, Any], None], str]] = {
    "prepared twice": (prepared_twice, "prepared already"),
    "another thread": (another_thread, "call prepare() in the thread that trains"),
    "looking within backward": (looking_within_backward, "look at it after backward()"),
    "a hook that hides": (hiding_hook, "taken the gradient of 5.bias away"),
}


def refused_while(rank: int, case: str, after: int) -> tuple[type[Exception], str] | None:
    net, opt = make()
    bytelane.prepare(net, opt, policy="bytescheduler", partition="1KiB", timeout_s=20)
    train(net, opt, rank, steps=after)
    try:
        WHILE_TRAINING[case][0](rank, net, opt)
    except (NotSupported, PeerFailed) as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("after", [0, 5], ids=["in the first iteration", "under a plan"])
@pytest.mark.parametrize("case", WHILE_TRAINING)
def test_refused_while_training(two_ranks: Pool, case: str, after: int) -> None:
    refusals = two_ranks.run(refused_while, case=case, after=after)
    assert all(refusal and WHILE_TRAINING[case][1] in refusal[1] for refusal in refusals)
    # Every rank makes the mistake; one may hear of the other's before it comes to its own.
    assert NotSupported in [kind for kind, _ in refusals]


def refused_on_one_rank(rank: int) -> str:
    net, opt = make()
    if rank == 1:
        net[0].to(torch.complex64)
    try:
        bytelane.prepare(net, opt)
    except NotSupported as error:
        return str(error)
    return "accepted"


def test_a_refusal_on_one_rank_is_a_refusal_on_all(two_ranks: Pool) -> None:
    first, second = two_ranks.run(refused_on_one_rank)
    assert first == f"rank 1: {second}"
    assert "0.weight is torch.complex64" in second


def frozen_on_one_rank(rank: int) -> str:
    net, opt = make()
    net[0].bias.requires_grad_(rank == 0)
    try:
        bytelane.prepare(net, opt)
    except PlanMismatch as error:
        return str(error)
    return "accepted"


def test_what_is_frozen_must_be_the_same_everywhere(two_ranks: Pool) -> None:
    for message in two_ranks.run(frozen_on_one_rank):
        assert "the model differs between ranks" in message


def test_without_a_process_group_there_is_nothing_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net, opt = make()
    assert bytelane.prepare(net, opt) == (net, opt)
    assert "one worker, nothing to synchronise" in capsys.readouterr().out
    train(net, opt, rank=0, steps=2)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"policy": "bytescheduller"}, "did you mean bytescheduler"),
        ({"policy": "p3", "partition": "0B"}, "must be 1 or more"),
        ({"policy": "p3", "partition": "1Gbit"}, "not a size"),
        ({"policy": "fifo", "credit": "1MiB"}, "has no effect under policy fifo"),
        ({"policy": "dear", "partition": "1MiB"}, "partition has no effect under policy dear"),
        ({"policy": "sequential"}, "can be simulated, but not yet carried out"),
        ({"policy": "optimal"}, "can be simulated, but not yet carried out"),
        ({"policy": "tac"}, "no meaning for allreduce"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        bytelane.prepare(*make(), **arguments)
