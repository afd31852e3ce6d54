"""Training for real, on two and four processes, beside DDP."""

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bytelane
from bytelane.core import Plan, PlannedBy, bucket_plan, in_halves
from bytelane.errors import PeerFailed, PlanMismatch, TransferTimeout
from bytelane.job import Job
from bytelane.runtime.sync import Contribution
from bytelane.runtime.torch import session_of
from bytelane.runtime.torch.transport import AllReduceTransport
from ranks import Pool
from training import STEPS, equal, loss_of, make, train, trained_by_ddp, trained_by_us, weights

FIFO: dict[str, Any] = {"policy": "fifo"}
SMALL_PARTS: dict[str, Any] = {"policy": "bytescheduler", "partition": "1KiB", "credit": "2KiB"}
ODD_PARTS: dict[str, Any] = {"policy": "bytescheduler", "partition": 1001, "credit": 1}
SMALL_GROUPS: dict[str, Any] = {"policy": "dear", "fusion": "4KiB"}
WHOLE: dict[str, Any] = {"policy": "bytescheduler"}


# --- the same weights as DDP, to the last bit --------------------------------------------------


def same_as_ddp(rank: int, **case: Any) -> bool:
    prepare = case.pop("prepare")
    return equal(trained_by_us(rank, prepare=prepare, **case), trained_by_ddp(rank, **case))


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("prepare", [FIFO, SMALL_PARTS, ODD_PARTS, SMALL_GROUPS, WHOLE], ids=str)
def test_weights_equal_ddp(two_ranks: Pool, optimizer: str, prepare: dict[str, Any]) -> None:
    case = {"model": "chain", "optimizer": optimizer, "prepare": prepare}
    assert two_ranks.run(same_as_ddp, **case) == [True, True]


@pytest.mark.parametrize("policy", ["fusion", "mg-wfbp", "p3", "dear", "fsdp"])
def test_every_policy_that_can_be_planned_equals_ddp(two_ranks: Pool, policy: str) -> None:
    case = {"model": "chain", "optimizer": "momentum", "prepare": {"policy": policy}}
    assert two_ranks.run(same_as_ddp, **case) == [True, True]


@pytest.mark.parametrize("prepare", [SMALL_PARTS, SMALL_GROUPS], ids=str)
@pytest.mark.parametrize("model", ["tied", "backwards"])
def test_tied_and_oddly_registered_models_equal_ddp(
    two_ranks: Pool, model: str, prepare: dict[str, Any]
) -> None:
    case = {"model": model, "optimizer": "adamw", "prepare": prepare}
    assert two_ranks.run(same_as_ddp, **case) == [True, True]


def test_zeroing_gradients_in_place_equals_ddp(two_ranks: Pool) -> None:
    case = {"model": "chain", "optimizer": "momentum", "prepare": SMALL_PARTS}
    assert two_ranks.run(same_as_ddp, set_to_none=False, **case) == [True, True]


def on_four_ranks(rank: int, prepare: dict[str, Any]) -> tuple[bool, list[torch.Tensor]]:
    ours = trained_by_us(rank, "chain", "momentum", prepare)
    ddp = trained_by_ddp(rank, "chain", "momentum")
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, ddp, strict=True)), ours


@pytest.mark.parametrize("prepare", [SMALL_PARTS, SMALL_GROUPS], ids=str)
def test_four_ranks_agree_exactly_and_with_ddp_up_to_rounding(
    four_ranks: Pool, prepare: dict[str, Any]
) -> None:
    answers = four_ranks.run(on_four_ranks, prepare=prepare)
    assert all(close for close, _ in answers)
    assert all(equal(answers[0][1], other) for _, other in answers)


def with_schedulers(rank: int) -> bool:
    def run(ours: bool) -> list[torch.Tensor]:
        net, opt = make()
        early = torch.optim.lr_scheduler.StepLR(opt, 3, gamma=0.5)
        target = net if ours else DistributedDataParallel(net)
        if ours:
            bytelane.prepare(net, opt, **SMALL_PARTS)
        late = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.9)
        train(target, opt, rank, after_step=lambda: (early.step(), late.step()))
        return weights(net)

    return equal(run(True), run(False))


def test_schedulers_built_before_and_after_prepare(two_ranks: Pool) -> None:
    assert two_ranks.run(with_schedulers) == [True, True]


# --- the check can fail --------------------------------------------------------------------------


def mutated(rank: int, mutation: str) -> bool:
    class Mutated(AllReduceTransport):
        def take(self, gradients: Iterable[Contribution]) -> None:
            if mutation == "not summed" and self._round % 5 == 0:
                gradients = [g._replace(value=g.value.clone()) for g in gradients]
            super().take(gradients)

        def forget(self, tensor: int) -> None:
            row = self.memory[tensor]
            if mutation == "swapped parts" and tensor == 0 and row is not None:
                row[:256], row[256:512] = row[256:512].clone(), row[:256].clone()
            super().forget(tensor)

    import bytelane.runtime.torch.carrier as carrier

    original = carrier.AllReduceTransport
    carrier.AllReduceTransport = Mutated  # type: ignore[misc]
    try:
        return same_as_ddp(rank, model="chain", optimizer="sgd", prepare=SMALL_PARTS)
    finally:
        carrier.AllReduceTransport = original  # type: ignore[misc]


@pytest.mark.parametrize(
    ("mutation", "same"), [("none", True), ("swapped parts", False), ("not summed", False)]
)
def test_the_comparison_with_ddp_sees_a_mutation(
    two_ranks: Pool, mutation: str, same: bool
) -> None:
    assert two_ranks.run(mutated, mutation=mutation) == [same, same]


def out_of_step(rank: int, how: str, prepare: dict[str, Any]) -> tuple[str, bool]:
    """Let rank 1 launch other operations of the same sizes: gloo adds them up without a word."""
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=20, **prepare)
    train(net, opt, rank, steps=5)
    session = session_of(net)
    session.flush()
    before = [p.detach().clone() for p in net.parameters()]
    if rank == 1 and how == "another plan":
        operations = list(session.plan.operations)
        sizes = [operation.bytes for operation in operations]
        k = next(k for k in range(len(sizes) - 1) if sizes[k] == sizes[k + 1])
        operations[k : k + 2] = reversed(operations[k : k + 2])
        changed = msgspec.structs.replace(session.plan, operations=tuple(operations))
        session.sync.install(changed)
    elif rank == 1 and how == "another order of gathering":
        changed = msgspec.structs.replace(session.plan, stages=in_halves((4, 3, 2, 1, 0)))
        session.sync.install(changed)
    elif rank == 1:
        session.sync.step += 1
    try:
        train(net, opt, rank, steps=1)
        session.flush()
    except (PlanMismatch, PeerFailed) as error:  # PeerFailed: another rank was quicker to notice
        with session.guard.looking_away():
            return str(error), equal([p.detach() for p in net.parameters()], before)
    return "nothing was noticed", False


@pytest.mark.parametrize(
    ("how", "prepare"),
    [
        ("another plan", SMALL_PARTS),
        ("another iteration", SMALL_PARTS),
        ("another order of gathering", SMALL_GROUPS),
        ("another iteration", SMALL_GROUPS),
    ],
    ids=str,
)
def test_ranks_out_of_step_are_noticed_before_anything_is_applied(
    two_ranks: Pool, how: str, prepare: dict[str, Any]
) -> None:
    for message, untouched in two_ranks.run(out_of_step, how=how, prepare=prepare):
        assert "met another operation on another rank" in message
        assert untouched


# --- nobody waits who need not, and nobody sees anything stale ----------------------------------


def overlapping(rank: int, prepare: dict[str, Any]) -> tuple[int, int]:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, **prepare)
    train(net, opt, rank, steps=5)
    session = session_of(net)
    session.flush()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["rank 0 has stepped"])
    opt.zero_grad()
    loss_of(net, rank, 5).backward()
    opt.step()
    owed = len(session.sync.tensors.owed)
    if rank == 0:
        store.set("rank 0 has stepped", "yes")
    session.flush()
    store.delete_key("rank 0 has stepped") if rank == 0 else None
    return owed, len(session.sync.tensors.owed)


@pytest.mark.parametrize("prepare", [SMALL_PARTS, SMALL_GROUPS], ids=str)
def test_step_returns_while_transfers_are_under_way(
    two_ranks: Pool, prepare: dict[str, Any]
) -> None:
    (owed_by_first, left), _ = two_ranks.run(overlapping, prepare=prepare)
    # Rank 1 has sent nothing yet, so rank 0 can have received nothing, and step() has returned.
    assert owed_by_first == 8
    assert left == 0


def looking(rank: int, look: str, prepare: dict[str, Any]) -> bool:
    """Look after every step at what DDP shows, and compare each time."""
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, **prepare)
    twin, twin_opt = make()
    ddp = DistributedDataParallel(twin)
    same = True
    for step in range(8):
        for model, forward, optimizer in ((net, net, opt), (twin, ddp, twin_opt)):
            optimizer.zero_grad()
            loss_of(forward, rank, step).backward()
            if look == "clip":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        same = same and LOOKS[look](net, twin)
    return same and equal(weights(net), weights(twin))


def _eval_output(model: torch.nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        result: torch.Tensor = model(torch.ones(2, 24))
    model.train()
    return result


def _pickled(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach() for p in pickle.loads(pickle.dumps(model)).parameters()]


def _saved(model: torch.nn.Module) -> list[torch.Tensor]:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    return list(torch.load(buffer).values())


LOOKS: dict[str, Any] = {
    "clip": lambda a, b: True,
    "grad": lambda a, b: equal([p.grad for p in a.parameters()], [p.grad for p in b.parameters()]),
    "data": lambda a, b: equal([p.data for p in a.parameters()], [p.data for p in b.parameters()]),
    "sum": lambda a, b: all(
        bool(p.sum() == q.sum()) for p, q in zip(a.parameters(), b.parameters(), strict=True)
    ),
    "stack": lambda a, b: torch.equal(
        torch.cat([p.view(-1) for p in a.parameters()]),
        torch.cat([p.view(-1) for p in b.parameters()]),
    ),
    "state_dict": lambda a, b: equal(weights(a), weights(b)),
    "save": lambda a, b: equal(_saved(a), _saved(b)),
    "eval": lambda a, b: torch.equal(_eval_output(a), _eval_output(b)),
    "child": lambda a, b: torch.equal(a[0](torch.ones(24)), b[0](torch.ones(24))),
    "deepcopy": lambda a, b: equal(weights(copy.deepcopy(a)), weights(b)),
    "pickle": lambda a, b: equal(_pickled(a), [p.detach() for p in b.parameters()]),
}


@pytest.mark.parametrize("prepare", [SMALL_PARTS, SMALL_GROUPS], ids=str)
@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looks_sees_what_ddp_shows(
    two_ranks: Pool, look: str, prepare: dict[str, Any]
) -> None:
    assert two_ranks.run(looking, look=look, prepare=prepare) == [True, True]


def copied(rank: int) -> list[str]:
    net, opt = make()
    bytelane.prepare(net, opt, **SMALL_PARTS)
    train(net, opt, rank, steps=5)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin(torch.ones(2, 24))
    twin.zero_grad()
    loss_of(twin, rank, 0).backward()  # a plain model again: nobody else has to take part
    train(net, opt, rank, steps=2)
    return [name for name, _ in twin.named_parameters()]


def test_a_copy_of_a_prepared_model_is_a_plain_model(two_ranks: Pool) -> None:
    first, second = two_ranks.run(copied)
    assert first == second


# --- the user's objects stay the user's ----------------------------------------------------------


def identities(rank: int) -> dict[str, bool]:
    net, opt = make()
    model, optimizer = bytelane.prepare(net, opt, **WHOLE)
    return {
        "model": model is net,
        "optimizer": optimizer is opt,
        "type": type(model) is torch.nn.Sequential,
        "names": list(model.state_dict()) == list(make()[0].state_dict()),
    }


def test_prepare_returns_the_same_objects(two_ranks: Pool) -> None:
    for answer in two_ranks.run(identities):
        assert all(answer.values()), answer


def resumed(rank: int, folder: str) -> bool:
    net, opt = make(optimizer="adamw")
    bytelane.prepare(net, opt, **SMALL_PARTS)
    train(net, opt, rank, steps=7)
    path = Path(folder) / f"checkpoint{rank}"
    torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, path)
    train(net, opt, rank, steps=5)
    saved = torch.load(path)
    net.load_state_dict(saved["model"])
    opt.load_state_dict(saved["optimizer"])
    train(net, opt, rank, steps=5)
    once_more = weights(net)
    saved = torch.load(path)  # again: the optimizer has gone on in the tensors it was given
    fresh, fresh_opt = make(optimizer="adamw")
    fresh.load_state_dict(saved["model"])
    fresh_opt.load_state_dict(saved["optimizer"])
    train(DistributedDataParallel(fresh), fresh_opt, rank, steps=5)
    return equal(once_more, weights(fresh))


def test_a_checkpoint_taken_mid_run_resumes_under_ddp(two_ranks: Pool, tmp_path: Path) -> None:
    assert two_ranks.run(resumed, folder=str(tmp_path)) == [True, True]


def differently_initialised(rank: int) -> list[torch.Tensor]:
    torch.manual_seed(rank)
    net = torch.nn.Linear(3, 3)
    bytelane.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return weights(net)


def test_all_ranks_start_from_the_first_ones_weights(two_ranks: Pool) -> None:
    first, second = two_ranks.run(differently_initialised)
    assert equal(first, second)


def after_the_warm_up(rank: int) -> tuple[str, int, str, list[str]]:
    net, opt = make("backwards")
    bytelane.prepare(net, opt, **SMALL_PARTS)
    train(net, opt, rank, steps=4)
    session = session_of(net)
    assert session.job is not None
    names = [layer.name for layer in session.job.layers]
    return session.plan.policy, session.plan.version, session.plan.digest, names


def test_ranks_switch_to_the_same_plan_made_for_the_order_of_use(two_ranks: Pool) -> None:
    first, second = two_ranks.run(after_the_warm_up)
    assert first == second
    assert first[:2] == ("bytescheduler", 2)
    assert first[3] == ["first", "last"]  # registered the other way round


# --- what stands in the way ends in a sentence ---------------------------------------------------


def coupled_optimizer(rank: int) -> bool:
    class Mine(torch.optim.SGD):
        pass

    def run(ours: bool) -> list[torch.Tensor]:
        net, _ = make()
        opt = Mine(net.parameters(), lr=0.1)
        if ours:
            bytelane.prepare(net, opt, **SMALL_PARTS)
        train(net if ours else DistributedDataParallel(net), opt, rank)
        return weights(net)

    return equal(run(True), run(False))


def test_an_unknown_optimizer_waits_for_all_and_equals_ddp(two_ranks: Pool) -> None:
    assert two_ranks.run(coupled_optimizer) == [True, True]


def counted_hooks(rank: int) -> int:
    net, opt = make()
    bytelane.prepare(net, opt, **SMALL_PARTS)
    calls: list[int] = []
    opt.register_step_post_hook(lambda *_: calls.append(1))
    train(net, opt, rank)
    weights(net)
    return len(calls)


def test_a_users_step_hook_runs_once_a_step(two_ranks: Pool) -> None:
    assert two_ranks.run(counted_hooks) == [STEPS, STEPS]


def absent_peer(rank: int) -> str:
    net, opt = make()
    dist.barrier()  # the limit is one for coming to prepare(), too
    bytelane.prepare(net, opt, timeout_s=4, **SMALL_PARTS)
    if rank == 1:
        return "elsewhere"
    try:
        train(net, opt, rank, steps=1)
    except TransferTimeout as error:
        return str(error)
    return "nothing was noticed"


def test_a_peer_that_does_not_come_is_an_error_not_a_hang(two_ranks: Pool) -> None:
    first, _ = two_ranks.run(absent_peer)
    assert "did not arrive within 4 s" in first


def different_models(rank: int) -> str:
    net = torch.nn.Linear(3, 3 + rank)
    try:
        bytelane.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    except PlanMismatch as error:
        return str(error)
    return "nothing was noticed"


def test_different_models_are_noticed_on_every_rank(two_ranks: Pool) -> None:
    for message in two_ranks.run(different_models):
        assert message == "the model differs between ranks: rank 1 does not agree with rank 0"


def dropped(rank: int) -> bool:
    net, opt = make()
    bytelane.prepare(net, opt, **SMALL_PARTS)
    train(net, opt, rank, steps=5)
    session = weakref.ref(session_of(net))
    del net, opt
    gc.collect()
    return session() is None


def test_a_dropped_model_takes_its_session_along(two_ranks: Pool) -> None:
    assert two_ranks.run(dropped) == [True, True]


def planner_that_fails(rank: int, why: str) -> str:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=20, **SMALL_PARTS)

    def fail(job: Job, cluster: object, version: int) -> Plan:
        if why == "no idea":
            raise RuntimeError(why)
        sizes = [tensor.bytes for tensor in job.tensors]
        return bucket_plan(sizes[::-1], sum(sizes), version)

    session_of(net)._planning._planners = [PlannedBy(fail)]
    try:
        train(net, opt, rank, steps=5)
    except (PlanMismatch, PeerFailed) as error:  # PeerFailed: another rank was quicker to notice
        return f"{error} {error.__context__}"
    return "nothing was noticed"


@pytest.mark.parametrize("why", ["no idea", "a plan for other tensors"])
def test_a_planner_that_fails_is_noticed_on_every_rank(two_ranks: Pool, why: str) -> None:
    first, second = two_ranks.run(planner_that_fails, why=why)
    assert "rank 0 could not make a plan" in first
    assert why in first
    assert "rank 0 could not make a plan" in second
