"""What would let ranks train apart without a word: refused, mended, or said."""

import io
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bytelane
from bytelane.errors import NotSupported, PlanMismatch, TrainingError
from ranks import Pool
from training import equal, loss_of, make, train, weights

SMALL_PARTS: dict[str, Any] = {"policy": "bytescheduler", "partition": "1KiB", "credit": "2KiB"}


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_a_launchers_rank_without_process_group_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "2")
    with pytest.raises(NotSupported, match=r"init_process_group\(\"gloo\"\) before"):
        bytelane.prepare(*make())


def test_one_worker_of_a_launcher_trains_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    bytelane.prepare(*make())
    assert "one worker" in capsys.readouterr().out


def with_other_optimizers(rank: int, what: str) -> str:
    net, opt = make()
    if rank == 1 and what == "rate":
        opt.param_groups[0]["lr"] *= 2
    if rank == 1 and what == "order":
        opt.param_groups[0]["params"].reverse()
    if rank == 1 and what == "kind":
        opt = torch.optim.Adam(net.parameters())
    try:
        bytelane.prepare(net, opt, timeout_s=20)
    except PlanMismatch as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("what", ["rate", "order", "kind"])
def test_optimizers_that_differ_between_ranks_are_refused(two_ranks: Pool, what: str) -> None:
    for told in two_ranks.run(with_other_optimizers, what=what):
        assert told == "the optimizer differs between ranks: rank 1 does not agree with rank 0"


def with_a_new_head(rank: int) -> bool:
    """Replace the last layer, and train it with an optimizer that nobody has prepared."""

    def run(ours: bool) -> list[torch.Tensor]:
        net, opt = make()
        if ours:
            bytelane.prepare(net, opt, timeout_s=20, **SMALL_PARTS)
        train(net if ours else DistributedDataParallel(net), opt, rank, steps=5)
        torch.manual_seed(11 + rank)  # as in DDP, what counts is the first rank's
        net[5] = torch.nn.Linear(60, 16)
        head = torch.optim.SGD(net[5].parameters(), lr=0.1)
        called = net if ours else DistributedDataParallel(net)
        train(called, opt, rank, steps=5, after_step=head.step)
        return weights(net)

    with redirect_stdout(io.StringIO()):
        return equal(run(True), run(False))


def test_a_layer_that_was_replaced_is_synchronised(two_ranks: Pool) -> None:
    assert two_ranks.run(with_a_new_head) == [True, True]


def moved(rank: int) -> str:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=20, **SMALL_PARTS)
    train(net, opt, rank, steps=2)
    net.to("meta")
    try:
        net(torch.ones(2, 24, device="meta"))
    except TrainingError as error:
        return str(error)
    return "accepted"


def test_a_model_that_was_moved_is_refused(two_ranks: Pool) -> None:
    for told in two_ranks.run(moved):
        assert "0.weight is on meta" in told


def set_by_hand(rank: int) -> str:
    net, opt = make()
    with redirect_stdout(io.StringIO()) as said:
        bytelane.prepare(net, opt, timeout_s=20, **SMALL_PARTS)
        for step in range(3):
            gradients = torch.autograd.grad(loss_of(net, rank, step), [*net.parameters()])
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.grad = gradient
            opt.step()
    return said.getvalue()


def test_gradients_set_by_hand_are_told_of_once(two_ranks: Pool) -> None:
    first, _ = two_ranks.run(set_by_hand)
    assert first.count("no backward pass has made the gradient of 0.weight (and 7 more)") == 1
