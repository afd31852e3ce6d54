"""What a script gets as DistributedDataParallel answers as DDP does, and leaves sending to us."""

import contextlib
import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import parallel

import bytelane
from bytelane.bench.script.compiled import has_gates_in_graphs, splits_graphs
from bytelane.bench.script.follow import Follower
from bytelane.bench.script.stand_in import Followed, Prepared, Silent, in_place_of_ddp
from bytelane.errors import NotSupported
from bytelane.foreign.torch import split_no_graphs
from bytelane.measure.script_discovery import Stop
from ranks import Pool
from training import equal, loss_of, make, weights

# The real one, whatever stands in for it.
DDP = parallel.DistributedDataParallel
STEPS = 8


class Ours:
    """Bytelane with a short patience."""

    no_sync = staticmethod(bytelane.no_sync)
    join = staticmethod(bytelane.join)

    def prepare(self, model: torch.nn.Module, optimizer: Any) -> None:
        bytelane.prepare(model, optimizer, timeout_s=30, policy="bytescheduler", partition=400)


@contextlib.contextmanager
def standing_in(kind: type[Followed] = Prepared, runtime: Any = None) -> Iterator[Follower]:
    """Bytelane under DDP's name."""
    with (
        Follower(10**6) as follower,
        in_place_of_ddp(kind, follower=follower, runtime=runtime or Ours()),
    ):
        yield follower


# --- it answers as DDP does -----------------------------------------------------------------------

QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "isinstance": lambda net, model: isinstance(net, DDP),
    "isinstance, by the name now": lambda net, model: isinstance(
        net, parallel.DistributedDataParallel
    ),
    "its name": lambda net, model: type(net).__name__,
    "its home": lambda net, model: type(net).__module__,
    "module": lambda net, model: net.module is model,
    "parameters": lambda net, model: [
        a is b for a, b in zip(net.parameters(), model.parameters(), strict=True)
    ],
    "names": lambda net, model: [name for name, _ in net.named_parameters()],
    "state_dict": lambda net, model: list(net.state_dict()),
    "load_state_dict": lambda net, model: str(net.load_state_dict(net.state_dict())),
    "modules": lambda net, model: [name for name, _ in net.named_modules()],
    "train and eval": lambda net, model: (net.eval().training, net.train().training),
    "no_sync": lambda net, model: _inside_no_sync(net),
    "attributes": lambda net, model: (
        net.require_backward_grad_sync,
        net.find_unused_parameters,
        net.broadcast_buffers,
        net.device_ids,
        net.process_group is dist.group.WORLD,
    ),
    "repr": lambda net, model: repr(net),
    "without gradients": lambda net, model: net(torch.ones(2, 24)).sum().item(),
    "deepcopy": lambda net, model: equal(weights(copy.deepcopy(net)), weights(net)),
    "pickle": lambda net, model: equal(weights(pickle.loads(pickle.dumps(net))), weights(net)),
}


def _inside_no_sync(net: Any) -> list[bool]:
    with net.no_sync():
        inside = net.require_backward_grad_sync
    return [inside, net.require_backward_grad_sync]


def answers(rank: int, stand_in: bool) -> dict[str, Any]:
    with standing_in() if stand_in else contextlib.nullcontext():
        model, _ = make("chain")
        net = parallel.DistributedDataParallel(model)
        with torch.no_grad():
            return {question: ask(net, model) for question, ask in QUESTIONS.items()}


def test_every_question_is_answered_as_ddp_answers_it(two_ranks: Pool) -> None:
    theirs, ours = (two_ranks.run(answers, stand_in=one)[0] for one in (False, True))
    assert ours == theirs


def test_nothing_stays_behind() -> None:
    init = torch.optim.Optimizer.__init__
    with standing_in():
        assert parallel.DistributedDataParallel is not DDP
        assert parallel.distributed.DistributedDataParallel is parallel.DistributedDataParallel
    assert parallel.DistributedDataParallel is parallel.distributed.DistributedDataParallel is DDP
    assert torch.optim.Optimizer.__init__ is init


# --- it trains as DDP does ------------------------------------------------------------------------


def made_by(order: str) -> tuple[Any, torch.nn.Module, torch.optim.Optimizer]:
    """A wrapped model and its optimizer, made in either order, alike on no two ranks at first."""
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(
        torch.nn.Linear(24, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 16)
    )
    if order == "optimizer first":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return parallel.DistributedDataParallel(model), model, optimizer
    net = parallel.DistributedDataParallel(model)
    return net, model, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def train(rank: int, net: Any, optimizer: Any, clear: Callable[[], None]) -> None:
    for step in range(STEPS):
        clear()
        loss_of(net, rank, step).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()


def trained(rank: int, order: str, stand_in: bool, by_model: bool = False) -> Any:
    with standing_in() if stand_in else contextlib.nullcontext():
        net, model, optimizer = made_by(order)
        train(rank, net, optimizer, net.zero_grad if by_model else optimizer.zero_grad)
        return weights(model)


@pytest.mark.parametrize("order", ["optimizer first", "wrapper first"])
def test_weights_equal_ddps_to_the_last_bit(two_ranks: Pool, order: str) -> None:
    theirs = two_ranks.run(trained, order=order, stand_in=False)
    ours = two_ranks.run(trained, order=order, stand_in=True)
    assert all(equal(a, b) for a, b in zip(theirs, ours, strict=True))


def test_gradients_may_be_cleared_through_the_wrapper(two_ranks: Pool) -> None:
    by_optimizer, by_model = (
        two_ranks.run(trained, order="wrapper first", stand_in=True, by_model=one)
        for one in (False, True)
    )
    assert equal(by_optimizer[0], by_model[0])


def accumulated(rank: int, stand_in: bool, by_attribute: bool) -> Any:
    """Two backward passes a step, of which the last is summed; one way or the other."""
    with standing_in() if stand_in else contextlib.nullcontext():
        net, model, optimizer = made_by("wrapper first")
        for step in range(STEPS):
            optimizer.zero_grad()
            if by_attribute:
                net.require_backward_grad_sync = False
                loss_of(net, rank, 100 + step).backward()
                net.require_backward_grad_sync = True
            else:
                with net.no_sync():
                    loss_of(net, rank, 100 + step).backward()
            loss_of(net, rank, step).backward()
            optimizer.step()
        return weights(model)


@pytest.mark.parametrize("by_attribute", [True, False])
def test_gradients_accumulate_as_under_ddp(two_ranks: Pool, by_attribute: bool) -> None:
    theirs, ours = (
        two_ranks.run(accumulated, stand_in=one, by_attribute=by_attribute) for one in (False, True)
    )
    assert all(equal(a, b) for a, b in zip(theirs, ours, strict=True))


def trained_unevenly(rank: int, stand_in: bool) -> Any:
    with standing_in() if stand_in else contextlib.nullcontext():
        net, model, optimizer = made_by("wrapper first")
        with net.join():
            for step in range(STEPS - rank):
                optimizer.zero_grad()
                loss_of(net, rank, step).backward()
                optimizer.step()
        return weights(model)


def test_ranks_may_have_different_numbers_of_batches(two_ranks: Pool) -> None:
    theirs, ours = (two_ranks.run(trained_unevenly, stand_in=one) for one in (False, True))
    assert all(equal(a, b) for a, b in zip(theirs, ours, strict=True))


def evaluated(rank: int, stand_in: bool) -> Any:
    """With gradients off, through the wrapper: DDP evaluates with rank 0's buffers everywhere."""
    with standing_in() if stand_in else contextlib.nullcontext():
        net, _, optimizer = made_by("wrapper first")
        train(rank, net, optimizer, optimizer.zero_grad)
        with torch.no_grad():
            return net.eval()(torch.ones(2, 24)).tolist()


def test_all_ranks_evaluate_alike(two_ranks: Pool) -> None:
    theirs, ours = (two_ranks.run(evaluated, stand_in=one) for one in (False, True))
    assert ours == theirs
    assert ours[0] == ours[1]


def trained_apart(rank: int) -> Any:
    with standing_in(Silent):
        net, model, optimizer = made_by("wrapper first")
        before = weights(model)
        train(rank, net, optimizer, optimizer.zero_grad)
        return before, weights(model)


def test_computing_alone_begins_together_and_goes_apart(two_ranks: Pool) -> None:
    (before, after), (other_before, other_after) = two_ranks.run(trained_apart)
    assert equal(before, other_before)
    assert not equal(after, other_after)


def buckets_of(rank: int) -> Any:
    with Follower(10**6) as follower, in_place_of_ddp(Followed, follower=follower, bucket_bytes=64):
        net = parallel.DistributedDataParallel(torch.nn.Linear(4, 4), bucket_cap_mb=3)
        return net.bucket_bytes_cap, follower.wrappers == [net], follower.wrapped_at[0].text


def test_ddp_as_it_is_may_get_other_buckets(two_ranks: Pool) -> None:
    line = "net = parallel.DistributedDataParallel(torch.nn.Linear(4, 4), bucket_cap_mb=3)"
    assert two_ranks.run(buckets_of)[0] == (64, True, line)


# --- when it is prepared, and when it is told to pause --------------------------------------------


class Events:
    """Writes down what the runtime would be told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def prepare(self, model: torch.nn.Module, optimizer: Any) -> None:
        given = optimizer if isinstance(optimizer, list) else [optimizer]
        names = " and ".join(type(one).__name__ for one in given)
        self.seen.append(f"prepare with {names}")

    @contextlib.contextmanager
    def no_sync(self, model: torch.nn.Module) -> Iterator[None]:
        self.seen.append("pause")
        yield
        self.seen.append("go on")

    def join(self, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        self.seen.append("join")
        return contextlib.nullcontext()


def told(rank: int, use: Callable[[Any, Events], None]) -> list[Any]:
    events = Events()
    with standing_in(runtime=events):
        net = parallel.DistributedDataParallel(torch.nn.Linear(24, 16))
        use(net, events)
    return events.seen


def sgd(net: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def use_first_without_gradients(net: Any, events: Events) -> None:
    optimizer = sgd(net)
    with torch.no_grad():
        net(torch.ones(1, 24))
    net.eval()(torch.ones(1, 24))
    net.train()(torch.ones(1, 24))
    events.seen.append(type(optimizer).__name__)


def evaluate_before_there_is_an_optimizer(net: Any, events: Events) -> None:
    net.eval()(torch.ones(1, 24))
    events.seen.append("evaluated")
    optimizer = sgd(net)
    net.train()(torch.ones(1, 24))
    del optimizer


def throw_an_optimizer_away(net: Any, events: Events) -> None:
    gc.disable()  # or it might run by chance
    optimizer = sgd(net)
    del optimizer
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 24))
    gc.enable()
    assert optimizer.param_groups


def use_two_optimizers(net: Any, events: Events) -> None:
    kinds = (torch.optim.SGD, torch.optim.Adam)
    both = [kind([p], lr=0.1) for kind, p in zip(kinds, net.parameters(), strict=True)]
    net(torch.ones(1, 24))
    assert len(both) == 2


def leave_other_optimizers_alone(net: Any, events: Events) -> None:
    other, own = sgd(torch.nn.Linear(1, 1)), torch.optim.Adagrad(net.parameters())
    net(torch.ones(1, 24))
    assert other is not own


def accumulate_by_context(net: Any, events: Events) -> None:
    optimizer = sgd(net)
    with net.no_sync():
        net(torch.ones(1, 24))
        net(torch.ones(1, 24))
    net(torch.ones(1, 24))
    with net.no_sync():
        events.seen.append(net.require_backward_grad_sync)
    del optimizer


def accumulate_by_attribute(net: Any, events: Events) -> None:
    optimizer = sgd(net)
    for wanted in (True, False, False, True, True):
        net.require_backward_grad_sync = wanted
        net(torch.ones(1, 24))
    del optimizer


def join_before_the_first_batch(net: Any, events: Events) -> None:
    optimizer = sgd(net)
    with net.join(), net.join(enable=False):
        net(torch.ones(1, 24))
    del optimizer


@pytest.mark.parametrize(
    ("use", "events"),
    [
        (join_before_the_first_batch, ["prepare with SGD", "join"]),
        (use_first_without_gradients, ["prepare with SGD", "SGD"]),
        (evaluate_before_there_is_an_optimizer, ["evaluated", "prepare with SGD"]),
        (throw_an_optimizer_away, ["prepare with AdamW"]),
        (use_two_optimizers, ["prepare with SGD and Adam"]),
        (leave_other_optimizers_alone, ["prepare with Adagrad"]),
        (accumulate_by_context, ["prepare with SGD", "pause", "go on", "pause", False, "go on"]),
        (accumulate_by_attribute, ["prepare with SGD", "pause", "go on"]),
    ],
)
def test_the_runtime_is_told_in_time(
    two_ranks: Pool, use: Callable[[Any, Events], None], events: list[Any]
) -> None:
    assert two_ranks.run(told, use=use) == [events, events]


# --- what is refused ------------------------------------------------------------------------------


def refusal(rank: int, use: Callable[[Any, Events], None]) -> str:
    with pytest.raises(NotSupported) as refused:
        told(rank, use)
    return str(refused.value)


def use_without_optimizer(net: Any, events: Events) -> None:
    net(torch.ones(1, 24))


def join_with_options(net: Any, events: Events) -> None:
    net.join(throw_on_early_termination=True)


def compress(net: Any, events: Events) -> None:
    net.register_comm_hook(None, None)


def wrap_for_some(net: Any, events: Events) -> None:
    group = dist.new_group([0, 1])
    parallel.DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)


def wrap_with_mixed_precision(net: Any, events: Events) -> None:
    precision = parallel.distributed._MixedPrecision(param_dtype=torch.float16)
    parallel.DistributedDataParallel(torch.nn.Linear(2, 2), mixed_precision=precision)


def ignore_some(net: Any, events: Events) -> None:
    model = torch.nn.Linear(2, 2)
    DDP._set_params_and_buffers_to_ignore_for_model(model, ["bias"])
    parallel.DistributedDataParallel(model)


@pytest.mark.parametrize(
    ("use", "complaint"),
    [
        (use_without_optimizer, "used in training before there is an optimizer for it"),
        (wrap_for_some, "wrapped for some of the ranks only"),
        (wrap_with_mixed_precision, "DistributedDataParallel's mixed_precision is not supported"),
        (ignore_some, "parameters that DistributedDataParallel ignores"),
        (join_with_options, "join() is supported as it is, without options"),
        (compress, "communication hooks are"),
    ],
)
def test_what_bytelane_does_not_do_is_refused(
    two_ranks: Pool, use: Callable[[Any, Events], None], complaint: str
) -> None:
    assert all(complaint in said for said in two_ranks.run(refusal, use=use))


# --- following steps ------------------------------------------------------------------------------


def stepping(optimizer: torch.optim.Optimizer, times: int) -> int:
    for done in range(times):
        try:
            optimizer.step()
        except Stop:
            return done + 1
    return times


def test_the_script_is_ended_at_a_step_whatever_it_catches() -> None:
    seen: list[int] = []
    weight = torch.nn.Parameter(torch.zeros(1))
    with Follower(3, seen.append) as follower:
        optimizer = torch.optim.SGD([weight], lr=1.0)
        weight.grad = torch.ones(1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        assert stepping(optimizer, 10) == 3
        with pytest.raises(Stop):
            optimizer.step()
    assert (weight.item(), follower.steps, seen) == (-3.0, 3, [1, 2, 3])
    assert len(follower.steady_s()) == 1


def test_the_optimizer_that_steps_first_is_the_clock() -> None:
    with Follower(3) as follower:
        first, second = (torch.optim.SGD([torch.zeros(1)], lr=1.0) for _ in range(2))
        assert stepping(second, 2) == 2
        assert stepping(first, 9) == 9
        assert follower.steps == 2


def test_no_hook_is_left_on_steps() -> None:
    from torch.optim import optimizer as optimizers

    with Follower(3):
        one = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        assert not one._optimizer_step_pre_hooks
        assert not one._optimizer_step_post_hooks
        assert not optimizers._global_optimizer_pre_hooks
        assert not optimizers._global_optimizer_post_hooks


@given(st.lists(st.floats(0, 1e6), max_size=40))
def test_the_first_half_does_not_count(ends: list[float]) -> None:
    follower = Follower(100)
    follower._step_ends_s = sorted(ends)
    counted = follower.steady_s()
    assert len(counted) == max(0, (len(ends) + 1) // 2 - 1)
    assert sum(counted) == pytest.approx(
        sorted(ends)[-1] - sorted(ends)[len(ends) // 2] if ends else 0
    )


# --- what is compiled -----------------------------------------------------------------------------


def compiled(kind: type[Followed], whole: bool, outside: bool) -> Any:
    """Train what is compiled, and return what is known of it then."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(optimize_ddp=True), standing_in(kind):
        if whole:
            split_no_graphs()
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.Linear(16, 16))
        inner = net if outside else torch.compile(net, backend="eager")
        model = parallel.DistributedDataParallel(inner)
        called = torch.compile(model, backend="eager") if outside else model
        optimizer = sgd(model)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(called, dist.get_rank(), step).backward()
            optimizer.step()
        return weights(net), splits_graphs(), has_gates_in_graphs()


def load_dynamo(rank: int) -> None:
    import torch._dynamo  # noqa: F401


def compiled_every_way(rank: int, outside: bool) -> tuple[bool, ...]:
    theirs, splits, _ = compiled(Followed, False, outside)
    whole, whole_splits, _ = compiled(Followed, True, outside)
    ours, _, gates = compiled(Prepared, False, outside)
    return splits, whole_splits, gates, equal(theirs, whole), equal(ours, whole)


@pytest.mark.parametrize("outside", [False, True], ids=["DDP(compiled)", "compiled(DDP)"])
def test_what_is_compiled_is_known_and_trains_as_under_ddp(two_ranks: Pool, outside: bool) -> None:
    two_ranks.run(load_dynamo)  # that alone may take long
    for found in two_ranks.run(compiled_every_way, outside=outside):
        assert found == (True, False, outside, True, True)
