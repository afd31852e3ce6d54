"""A late update inherits nothing from the place where it is made."""

import copy
import io
import pickle
from collections import defaultdict
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bytelane
from bytelane.runtime.torch import session_of
from cases.arms import KNOBS
from contexts import how_to_repeat, judge, nothing_arrives_early
from ranks import Pool, RankFailed
from training import equal, loss_of, make, weights


@pytest.mark.parametrize("seed", range(24))
def test_what_a_seed_draws_trains_as_under_ddp(two_ranks: Pool, seed: int) -> None:
    try:
        found = two_ranks.run(judge, seed=seed)
    except RankFailed as error:
        pytest.fail(f"{error}\n{how_to_repeat(seed, 2)}")
    assert found == [[], []], how_to_repeat(seed, 2)


# --- an update that raises ------------------------------------------------------------------------


def prepared_with_late_updates(rank: int) -> tuple[Any, Any]:
    """Train until all updates of a step are late."""
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=20, **KNOBS)
    for step in range(6):
        opt.zero_grad()
        loss_of(net, rank, step).backward()
        opt.step()
    return net, opt


def an_update_that_raises(rank: int, error: type[BaseException]) -> list[tuple[str, str, str]]:
    """Return what the first use of the model has raised, and every further one."""
    with redirect_stdout(io.StringIO()), nothing_arrives_early():
        net, _ = prepared_with_late_updates(rank)
        stepper = session_of(net).deferred.by_optimizer[0]

        def fail(optimizer: Any) -> None:
            raise error("the optimizer has had enough")

        stepper._step = fail
        uses = [
            lambda: loss_of(net, rank, 6),
            lambda: loss_of(net, rank, 7).backward(),
            net.state_dict,
            lambda: torch.save(dict(net.named_parameters()), io.BytesIO()),
            lambda: net(torch.ones(1, 24)),
        ]
        told = []
        for use in uses:
            try:
                use()
                told.append(("nothing", "", ""))
            except BaseException as raised:
                notes = " ".join(getattr(raised, "__notes__", []))
                told.append((type(raised).__name__, str(raised), notes))
        return told


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_update_that_raises_leaves_a_model_that_refuses_everything(
    fresh_ranks: Pool, error: type[BaseException]
) -> None:
    for told in fresh_ranks.run(an_update_that_raises, error=error):
        first, *others = told
        assert first[0] == ("KeyboardInterrupt" if error is KeyboardInterrupt else "TrainingError")
        for kind, message, _ in others:
            assert kind in ("TrainingError", "PeerFailed"), told
            assert "the update of 0.weight" in message
            assert "the optimizer has had enough" in message
        assert "middle of step 6" in first[2], told
        assert "may have a part of it. Go back to a checkpoint." in first[2]


# --- the optimizer's state ------------------------------------------------------------------------


def state_read(rank: int, way: str) -> bool:
    """Read the state between steps by ours and by DDP; tell whether both are the same."""
    with redirect_stdout(io.StringIO()), nothing_arrives_early():
        return equal(states_seen(rank, way, ours=True), states_seen(rank, way, ours=False))


def states_seen(rank: int, way: str, ours: bool) -> list[torch.Tensor]:
    net, opt = make(optimizer="adamw")
    target = net if ours else DistributedDataParallel(net)
    if ours:
        bytelane.prepare(net, opt, timeout_s=20, **KNOBS)
    seen: list[torch.Tensor] = []
    held: list[torch.Tensor] = []
    for step in range(8):
        opt.zero_grad()
        loss_of(target, rank, step).backward()
        opt.step()
        if way == "held tensors":
            held = held or [state["exp_avg"] for state in opt.state.values()]
            seen += [tensor.clone() for tensor in held]
        else:
            state = STATE_READERS[way](net, opt)
            seen += [state[p]["exp_avg"].clone() for p in state]
        if way == "loaded again" and step == 5:
            opt.load_state_dict(opt.state_dict())
    return seen


STATE_READERS: dict[str, Any] = {
    "items": lambda net, opt: dict(opt.state.items()),
    "one by one": lambda net, opt: {p: opt.state[p] for p in net.parameters()},
    "dict": lambda net, opt: dict(opt.state),
    "deepcopy": lambda net, opt: copy.deepcopy(opt).state,
    "pickle": lambda net, opt: pickle.loads(pickle.dumps(opt)).state,
    "loaded again": lambda net, opt: {p: opt.state[p] for p in net.parameters()},
}


@pytest.mark.parametrize("way", [*STATE_READERS, "held tensors"])
def test_the_optimizers_state_is_up_to_date_when_it_is_read(two_ranks: Pool, way: str) -> None:
    assert two_ranks.run(state_read, way=way) == [True, True]


def guarded_only_while_updates_are_owed(rank: int) -> list[str]:
    with redirect_stdout(io.StringIO()), nothing_arrives_early():
        net, opt = prepared_with_late_updates(rank)
        kinds = [opt.state]
        kinds.append(copy.copy(opt.state))
        for p in net.parameters():
            p.sum()
        kinds.append(opt.state)
        return [type(state).__name__ for state in kinds]


def test_the_state_is_the_optimizers_own_when_nothing_is_owed(two_ranks: Pool) -> None:
    expected = ["StateGuard", "defaultdict", "defaultdict"]
    assert two_ranks.run(guarded_only_while_updates_are_owed) == [expected] * 2


# --- what the user does to the optimizer after step() ---------------------------------------------

EDITS: dict[str, Any] = {
    "groups in another order": lambda opt: opt.param_groups.reverse(),
    "the first group dropped": lambda opt: opt.param_groups.pop(0),
    "the last group dropped": lambda opt: opt.param_groups.pop(),
    "a parameter in another group": lambda opt: opt.param_groups[0]["params"].append(
        opt.param_groups[1]["params"].pop()
    ),
    "no parameters any more": lambda opt: [g["params"].clear() for g in opt.param_groups],
    "a new state": lambda opt: setattr(opt, "state", defaultdict(dict)),
    "made anew": lambda opt: opt.__init__(  # type: ignore[misc]
        [p for g in opt.param_groups for p in g["params"]], lr=0.003
    ),
}


def edited(rank: int, edit: str) -> bool:
    """Edit an optimizer right after step(), by ours and by DDP, and go on."""

    def run(ours: bool) -> list[torch.Tensor]:
        net, _ = make()
        layers = [net[0], net[2], net[5]]
        groups = [{"params": [*m.parameters()], "lr": 0.1**k} for k, m in enumerate(layers, 1)]
        opt = torch.optim.AdamW(groups, lr=0.01)
        target = net if ours else DistributedDataParallel(net)
        if ours:
            bytelane.prepare(net, opt, timeout_s=20, **KNOBS)
        for step in range(9):
            opt.zero_grad()
            loss_of(target, rank, step).backward()
            opt.step()
            if step == 6:
                EDITS[edit](opt)
        return weights(net)

    with redirect_stdout(io.StringIO()), nothing_arrives_early():
        return equal(run(True), run(False))


@pytest.mark.parametrize("edit", EDITS)
def test_a_late_update_knows_the_optimizer_as_it_was(two_ranks: Pool, edit: str) -> None:
    assert two_ranks.run(edited, edit=edit) == [True, True]
