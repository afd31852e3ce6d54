"""Loops that an ordinary user writes, on two processes beside DDP."""

import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bytelane
from bytelane.runtime.torch import access_guard
from bytelane.runtime.torch.access_guard import AccessGuard
from ranks import Pool
from training import equal, loss_of, make, train, trained_by_ddp, trained_by_us, weights

SMALL_PARTS: dict[str, Any] = {"policy": "bytescheduler", "partition": "1KiB", "credit": "2KiB"}


Loop = Callable[[Any, Any, Any, int], None]  # the model, what to call, the optimizer, the rank


def stepping_twice(model: Any, net: Any, opt: Any, rank: int) -> None:
    train(net, opt, rank, steps=6)
    opt.step()


def backward_without_step(model: Any, net: Any, opt: Any, rank: int) -> None:
    for step in range(8):
        opt.zero_grad()
        loss_of(net, rank, step).backward()
        if step % 3:
            opt.step()


def own_hook(model: Any, net: Any, opt: Any, rank: int) -> None:
    def clamp(parameter: Any) -> None:
        parameter.grad.clamp_(-0.01, 0.01)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(clamp)
    train(net, opt, rank, steps=8)


def alias_taken_before(model: Any, net: Any, opt: Any, rank: int) -> None:
    aliases = [p.data for p in model.parameters()]

    def decay() -> None:
        for alias in aliases:
            alias.mul_(0.99)

    train(net, opt, rank, steps=8, after_step=decay)


def gradient_alias(model: Any, net: Any, opt: Any, rank: int) -> None:
    loss_of(net, rank, 0).backward()
    aliases = [p.grad for p in model.parameters()]

    def clamp() -> None:
        for alias in aliases:
            alias.clamp_(-0.01, 0.01)

    train(net, opt, rank, steps=8, set_to_none=False, before_step=clamp)


def two_optimizers(model: Any, net: Any, opt: Any, rank: int) -> None:
    parameters = list(model.parameters())
    other = torch.optim.Adam(parameters[4:], lr=0.01)
    opt.param_groups[0]["params"][:] = parameters[:4]
    for step in range(8):
        loss_of(net, rank, step).backward()
        opt.step()
        opt.zero_grad()
        other.step()
        other.zero_grad()


def several_forwards(model: Any, net: Any, opt: Any, rank: int) -> None:
    for step in range(8):
        opt.zero_grad()
        sum(loss_of(net, rank, 10 * step + k) for k in range(4)).backward()
        opt.step()


def grad_scaler(model: Any, net: Any, opt: Any, rank: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
    for step in range(10):
        opt.zero_grad()
        scaler.scale(loss_of(net, rank, step)).backward()
        scaler.step(opt)
        scaler.update()


def lazy_module_meanwhile(model: Any, net: Any, opt: Any, rank: int) -> None:
    for step in range(6):
        opt.zero_grad()
        loss_of(net, rank, step).backward()
        torch.nn.LazyLinear(3)  # a tensor without memory is looked at
        opt.step()


def accumulate_by_attribute(model: Any, net: Any, opt: Any, rank: int) -> None:
    for step in range(6):
        for part in range(3):
            net.require_backward_grad_sync = part == 2
            (loss_of(net, rank, 10 * step + part) / 3).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


def two_optimizers_of_the_same(model: Any, net: Any, opt: Any, rank: int) -> None:
    """One after the other, then by turns."""
    other = OTHERS[id(opt)]
    for step in range(9):
        loss_of(net, rank, step).backward()
        (opt if step < 3 else other).step()
        if step > 5:
            opt.step()
        opt.zero_grad()


LOOPS: dict[str, Loop] = {
    "step twice": stepping_twice,
    "backward without step": backward_without_step,
    "a hook of one's own": own_hook,
    "an alias of the weights": alias_taken_before,
    "an alias of the gradients": gradient_alias,
    "two optimizers": two_optimizers,
    "several forwards": several_forwards,
    "a grad scaler that skips": grad_scaler,
    "a lazy module made meanwhile": lazy_module_meanwhile,
    "accumulation by DDP's attribute": accumulate_by_attribute,
    "two optimizers of the same parameters": two_optimizers_of_the_same,
}
OTHERS: dict[int, torch.optim.Optimizer] = {}


def in_a_users_loop(rank: int, loop: str, model: str = "chain") -> bool:
    def run(ours: bool) -> list[torch.Tensor]:
        with torch.device("cpu"):  # a mode that is left again while ours must stay
            net, opt = make(model)
            other = OTHERS[id(opt)] = torch.optim.Adam(net.parameters(), lr=0.01)
            if ours:
                both = [opt, other] if loop == "two optimizers of the same parameters" else opt
                bytelane.prepare(net, both, timeout_s=30, **SMALL_PARTS)
        LOOPS[loop](net, net if ours else DistributedDataParallel(net), opt, rank)
        return weights(net)

    return equal(run(True), run(False))


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_that_users_write_equal_ddp(two_ranks: Pool, loop: str) -> None:
    assert two_ranks.run(in_a_users_loop, loop=loop) == [True, True]


class TakesTheLoss(torch.optim.SGD):
    """Has a step() and a zero_grad() with arguments of its own."""

    def step(self, loss: torch.Tensor) -> None:  # type: ignore[override]
        assert isinstance(loss, torch.Tensor)
        super().step()

    def zero_grad(self) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.grad.mul_(0.5)  # keeps half of it


def with_own_arguments(rank: int) -> bool:
    def run(ours: bool) -> list[torch.Tensor]:
        net, _ = make("chain")
        opt = TakesTheLoss(net.parameters(), lr=0.1)
        if ours:
            bytelane.prepare(net, opt, timeout_s=30, **SMALL_PARTS)
        called = net if ours else DistributedDataParallel(net)
        for step in range(6):
            opt.zero_grad()
            loss = loss_of(called, rank, step)
            loss.backward()
            opt.step(loss)
        return weights(net)

    return equal(run(True), run(False))


def test_an_optimizer_may_have_arguments_and_a_zero_grad_of_its_own(two_ranks: Pool) -> None:
    assert two_ranks.run(with_own_arguments) == [True, True]


class FailsOnce(torch.optim.SGD):
    """Says what it sees while it steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.watched: list[bool] = []

    def step(self, closure: Any = None) -> None:
        self.watched.append(AccessGuard.is_watching())
        if len(self.watched) == 3:
            raise ValueError("no step today")


def a_step_that_fails(rank: int) -> bool:
    """Nobody looks while a step goes over all gradients; afterwards, and after a failure, we do."""
    access_guard._mode._guards = ()  # models of earlier tests in this process, behind for ever
    net, _ = make("chain")
    opt = FailsOnce(net.parameters(), lr=0.1)
    bytelane.prepare(net, opt, timeout_s=30, policy="fifo")
    after = []
    for step in range(6):
        loss_of(net, rank, step).backward()
        with suppress(ValueError):
            opt.step()
        after.append(AccessGuard.is_watching())
    loss_of(net, rank, 7).backward()
    return not any(opt.watched) and after == [step != 2 for step in range(6)]


def test_looks_are_seen_again_after_a_step_even_if_it_fails(two_ranks: Pool) -> None:
    assert two_ranks.run(a_step_that_fails) == [True, True]


class NowAndThen(torch.nn.Module):
    """A layer that another rank uses in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(24, 16)
        self.extra = torch.nn.Linear(16, 16)
        self.never = torch.nn.Linear(16, 16)
        self.takes_extra = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.first(x)
        return found + self.extra(found) if self.takes_extra else found


def clipped_where_one_rank_has_no_gradient(rank: int, last_step: bool) -> bool:
    def run(ours: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = NowAndThen()
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if ours:
            bytelane.prepare(model, opt, timeout_s=30, **SMALL_PARTS)
            net: Any = model
        else:
            net = DistributedDataParallel(model, find_unused_parameters=True)
        norms = []
        for step in range(7):
            model.takes_extra = (rank + step) % 2 == 0
            opt.zero_grad()
            loss_of(net, rank, step).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            if last_step or step < 6:
                opt.step()
        return [*weights(model), *norms]

    return equal(run(True), run(False))


@pytest.mark.parametrize("last_step", [True, False], ids=["stepping", "and no step in the end"])
def test_a_gradient_that_only_others_have_is_theirs_for_whoever_looks(
    two_ranks: Pool, last_step: bool
) -> None:
    found = two_ranks.run(clipped_where_one_rank_has_no_gradient, last_step=last_step)
    assert found == [True, True]


def read_where_one_rank_has_no_gradient(rank: int) -> bool:
    """End with a backward pass, and read the weights: nobody waits for a rank that has gone on."""
    torch.manual_seed(3)
    model = NowAndThen()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    bytelane.prepare(model, opt, timeout_s=30, **SMALL_PARTS)
    for step in range(6):
        model.takes_extra = rank == 0
        loss_of(model, rank, step).backward()
        if step < 5:
            opt.step()
            opt.zero_grad()
    read = weights(model)
    torch.distributed.barrier()
    return all(torch.isfinite(value).all() for value in read)


def test_weights_can_be_read_after_a_backward_pass_that_reached_more_elsewhere(
    two_ranks: Pool,
) -> None:
    assert two_ranks.run(read_where_one_rank_has_no_gradient) == [True, True]


def odd_model(rank: int, model: str) -> bool:
    ours = trained_by_us(rank, model, "momentum", SMALL_PARTS)
    return equal(ours, trained_by_ddp(rank, model, "momentum"))


@pytest.mark.parametrize("model", ["batch norm", "gaps", "empty"])
def test_buffers_and_odd_parameters_equal_ddp(two_ranks: Pool, model: str) -> None:
    assert two_ranks.run(odd_model, model=model) == [True, True]


def seen_by_clipping(rank: int) -> bool:
    """Prepare inside a with block that ends before training: the watch must not end with it."""

    def run(ours: bool) -> list[torch.Tensor]:
        with torch.device("cpu"):
            net, opt = make()
            if ours:
                bytelane.prepare(net, opt, **SMALL_PARTS)

        def clip() -> None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)

        train(net if ours else DistributedDataParallel(net), opt, rank, before_step=clip)
        return weights(net)

    return equal(run(True), run(False))


def with_a_default_device(rank: int) -> bool:
    torch.set_default_device("cpu")
    try:
        return seen_by_clipping(rank)
    finally:
        torch.set_default_device(None)  # finds itself at the bottom of the stack, or raises


def test_the_watch_goes_with_a_default_device(fresh_ranks: Pool) -> None:
    assert fresh_ranks.run(with_a_default_device) == [True, True]


def test_the_watch_survives_the_end_of_a_with_block(fresh_ranks: Pool) -> None:
    assert fresh_ranks.run(seen_by_clipping) == [True, True]


def many_models(rank: int) -> tuple[int, int]:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def one() -> None:
        net, opt = make()
        bytelane.prepare(net, opt, **SMALL_PARTS)
        train(net, opt, rank, steps=1)
        weights(net)

    one()
    gc.collect()
    before = count()
    for _ in range(5):
        one()
        gc.collect()
    return before, count()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_dropped_models_close_their_sockets(two_ranks: Pool) -> None:
    for before, after in two_ranks.run(many_models):
        assert after <= before + 4


def gan(rank: int) -> bool:
    """Two prepared models; the generator's loss also fills the discriminator's gradients."""

    def run(ours: bool) -> list[torch.Tensor]:
        made = [make("chain"), make("backwards")]  # 24 -> 16, used as 24 -> 16 by both
        generator, discriminator = made[0][0], made[1][0]
        called: list[Any] = [generator, discriminator]
        for k, (net, opt) in enumerate(made):
            if ours:
                bytelane.prepare(net, opt, timeout_s=30, **SMALL_PARTS)
            else:
                called[k] = DistributedDataParallel(net)
        for step in range(8):
            noise = torch.randn(8, 24, generator=torch.Generator().manual_seed(100 * rank + step))
            fake = torch.nn.functional.pad(called[0](noise), (0, 8))
            made[1][1].zero_grad()
            called[1](fake.detach()).square().mean().backward()
            made[1][1].step()
            made[0][1].zero_grad()
            called[1](fake).mean().backward()
            made[0][1].step()
        return weights(generator) + weights(discriminator)

    return equal(run(True), run(False))


def test_two_models_that_train_each_other_equal_ddp(two_ranks: Pool) -> None:
    assert two_ranks.run(gan) == [True, True]


def global_hook(rank: int) -> int:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    calls: list[int] = []
    net, opt = make()
    bytelane.prepare(net, opt, **SMALL_PARTS)
    handle = register_optimizer_step_post_hook(lambda *_: calls.append(1))
    train(net, opt, rank, steps=8)
    weights(net)
    handle.remove()
    return len(calls)


def test_a_hook_on_all_optimizers_runs_once_a_step(two_ranks: Pool) -> None:
    assert two_ranks.run(global_hook) == [8, 8]


def first_rank_evaluates(rank: int) -> bool:
    """With gradients enabled, in the iterations in which the job is measured."""

    def run(ours: bool) -> list[torch.Tensor]:
        net, opt = make()
        if ours:
            bytelane.prepare(net, opt, timeout_s=30, **SMALL_PARTS)
        target = net if ours else DistributedDataParallel(net)

        def evaluate() -> None:
            if rank == 0:
                net(torch.ones(2, 24))

        train(target, opt, rank, steps=8, after_step=evaluate)
        return weights(net)

    return equal(run(True), run(False))


def test_the_first_rank_may_evaluate_alone(two_ranks: Pool) -> None:
    assert two_ranks.run(first_rank_evaluates) == [True, True]
