"""``bytelane.flush``: for what reads weights without a torch function."""

import io
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bytelane
from bytelane.errors import NotSupported, TrainingError
from cases.arms import KNOBS
from contexts import nothing_arrives_early
from ranks import Pool
from training import loss_of, make, train


def prepared(rank: int, steps: int) -> tuple[Any, Any]:
    """Train until the updates of the last step are all late."""
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=20, **KNOBS)
    train(net, opt, rank, steps=steps)
    return net, opt


def arrays_of(net: torch.nn.Module) -> list[np.ndarray[Any, Any]]:
    """Return the memory of all weights, which numpy reads without a torch function."""
    return [parameter.detach().numpy() for parameter in net.parameters()]


def what_numpy_sees(rank: int) -> tuple[bool, bool, int]:
    """Return whether numpy sees DDP's weights before and after a flush, and what is then owed."""
    net, opt = make()
    train(DistributedDataParallel(net), opt, rank, steps=7)
    theirs = [array.copy() for array in arrays_of(net)]
    with redirect_stdout(io.StringIO()), nothing_arrives_early():
        net, opt = prepared(rank, 6)
        ours = arrays_of(net)
        opt.zero_grad()
        loss_of(net, rank, 6).backward()
        opt.step()
        before = all(map(np.array_equal, ours, theirs))
        bytelane.flush(net)
        after = all(map(np.array_equal, ours, theirs))
        status = bytelane.status(net)
        assert status is not None
        return before, after, status.owed_tensors


def test_every_update_is_made(two_ranks: Pool) -> None:
    assert two_ranks.run(what_numpy_sees) == [(False, True, 0)] * 2


def flush_within_backward(rank: int) -> str:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=20, **KNOBS)
    loss = loss_of(net, rank, 0)
    loss.register_hook(lambda _: bytelane.flush(net))
    with pytest.raises(NotSupported) as caught:
        loss.backward()
    bytelane.flush(net)  # nothing to do, and nothing broken
    return str(caught.value)


def test_within_a_backward_pass_it_is_refused(two_ranks: Pool) -> None:
    for sentence in two_ranks.run(flush_within_backward):
        assert sentence.endswith("within a backward pass; call it after backward()")


def gradient_of_old_weights(rank: int) -> str:
    """Use weights by a graph that was made before their update."""
    with redirect_stdout(io.StringIO()), nothing_arrives_early():
        net, opt = prepared(rank, 6)
        older = loss_of(net, rank, 7)
        opt.zero_grad()
        loss_of(net, rank, 6).backward()
        opt.step()
        with pytest.raises(TrainingError) as caught:
            older.backward()
    return str(caught.value)


def test_the_error_that_needs_it_names_it(fresh_ranks: Pool) -> None:
    for sentence in fresh_ranks.run(gradient_of_old_weights):
        assert sentence.endswith("; call bytelane.flush(model) before that use")


def test_one_worker_has_nothing_to_flush(capsys: pytest.CaptureFixture[str]) -> None:
    net, opt = make()
    bytelane.prepare(net, opt)
    loss_of(net, 0, 0).backward()
    opt.step()
    bytelane.flush(net)
    assert "one worker" in capsys.readouterr().out
