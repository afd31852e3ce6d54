"""Stepping some parameters now and the others later is the same as stepping all at once."""

from collections.abc import Callable

import pytest
import torch

from bytelane.runtime.torch.deferred_step import DeferredStep
from bytelane.runtime.torch.separable_optimizers import SEPARABLE_OPTIMIZERS, is_separable

Maker = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
MAKERS: dict[str, Maker] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-nesterov": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "muon": lambda p: torch.optim.Muon(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "sparse-adam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}
TAKES_ONLY_SPARSE_ROWS = {"sparse-adam"}


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(5, 3, generator=generator)) for _ in range(6)]


def gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(5, 3, generator=generator) for _ in range(6)]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("order", [[[0], [1], [2], [3], [4], [5]], [[5, 2], [0], [1, 3, 4]]])
def test_late_steps_are_bit_equal_to_one_step(name: str, order: list[list[int]]) -> None:
    whole, parted = parameters(), parameters()
    at_once, in_parts = MAKERS[name](whole), MAKERS[name](parted)
    assert is_separable(in_parts)
    stepper = DeferredStep(in_parts)
    for step in range(5):
        for p, q, g in zip(whole, parted, gradients(step), strict=True):
            if name in TAKES_ONLY_SPARSE_ROWS:
                rows = torch.tensor([[step, (step + 1) % 5]])
                g = torch.sparse_coo_tensor(rows, g[:2], p.shape, check_invariants=True)
            p.grad, q.grad = g.clone(), g.clone()
        at_once.step()
        stepper.remember()
        for group in order:
            stepper.step([parted[i] for i in group])
        assert all(torch.equal(p, q) for p, q in zip(whole, parted, strict=True))


def test_every_separable_optimizer_is_tested() -> None:
    tested = {type(make(parameters())) for make in MAKERS.values()}
    assert tested == set(SEPARABLE_OPTIMIZERS)


def test_a_subclass_may_couple_parameters_and_is_not_trusted() -> None:
    class Mine(torch.optim.SGD):
        pass

    assert not is_separable(Mine(parameters(), lr=0.1))
    assert not is_separable(torch.optim.LBFGS(parameters()))


def test_hyper_parameters_are_those_of_the_moment_of_step() -> None:
    (p, q, *_) = parameters()
    start = p.detach().clone()
    optimizer = torch.optim.SGD([p, q], lr=0.5)
    stepper = DeferredStep(optimizer)
    p.grad = torch.ones_like(p)
    stepper.remember()
    optimizer.param_groups[0]["lr"] = 100.0  # a scheduler steps before the gradient has arrived
    stepper.step([p])
    assert torch.equal(p, start - 0.5)
    assert optimizer.param_groups[0]["lr"] == 100.0


def test_a_learning_rate_in_a_tensor_is_remembered_by_value() -> None:
    (p, *_) = parameters()
    start = p.detach().clone()
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([p], lr=rate)
    stepper = DeferredStep(optimizer)
    p.grad = torch.ones_like(p)
    stepper.remember()
    rate.fill_(100.0)
    stepper.step([p])
    assert torch.equal(p, start - 0.5)
    assert optimizer.param_groups[0]["lr"] is rate


def test_other_gradients_come_back_untouched() -> None:
    ps = parameters()
    for p, g in zip(ps, gradients(0), strict=True):
        p.grad = g
    before = [p.detach().clone() for p in ps]
    grads = [p.grad for p in ps]
    stepper = DeferredStep(torch.optim.SGD(ps, lr=0.1))
    stepper.remember()
    stepper.step([ps[2]])
    assert [p.grad for p in ps] == grads or all(
        a is b for a, b in zip([p.grad for p in ps], grads, strict=True)
    )
    assert [torch.equal(p, b) for p, b in zip(ps, before, strict=True)] == [
        True,
        True,
        False,
        True,
        True,
        True,
    ]
