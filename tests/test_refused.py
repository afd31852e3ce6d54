"""What is not supported yet is refused with a sentence, never done wrong."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bytelane
from bytelane.errors import InputError, NotSupported, PeerFailed, PlanMismatch
from ranks import Pool
from training import make, train


def sgd(*models: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)


def lazy() -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LazyLinear(3))
    return model, torch.optim.SGD(model[0].parameters(), lr=0.1)


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
}


def refused_before(rank: int, case: str) -> str:
    model, optimizer = BEFORE_TRAINING[case][0]()
    try:
        bytelane.prepare(model, optimizer)
    except NotSupported as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("case", BEFORE_TRAINING)
def test_refused_before_training_starts(two_ranks: Pool, case: str) -> None:
    for message in two_ranks.run(refused_before, case=case):
        assert BEFORE_TRAINING[case][1] in message


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
