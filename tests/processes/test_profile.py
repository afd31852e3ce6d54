"""Profiling a model: exact with a clock that only the model moves, and without a trace left."""

import copy
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import bytelane
from bytelane.errors import InputError, NotSupported
from bytelane.job import Job, Layer, Tensor, load, save
from bytelane.measure.clock import CudaClock
from bytelane.measure.loop import profile_model
from training import Empty, Tied, chain


class Hourglass:
    """Stands still but for those who take their time from it."""

    now_s = 0.0

    def moment(self) -> float:
        return Hourglass.now_s

    def seconds(self, moments: Sequence[float]) -> list[float]:
        return list(moments)


class _Taking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        Hourglass.now_s += forward_s
        ctx.backward_s = backward_s
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        Hourglass.now_s += ctx.backward_s
        return gradients[0], None, None


def takes(x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
    result: torch.Tensor = _Taking.apply(x, forward_s, backward_s)
    return result


class Timed(nn.Module):
    """A weight, and a known time for each pass."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.times = (forward_s, backward_s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Behind the multiplication, so that its backward comes before the weight's gradient.
        return takes(x * self.weight, *self.times)


class Plain(nn.Module):
    """Time without parameters."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.times = (forward_s, backward_s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return takes(x, *self.times)


class TimedSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        Hourglass.now_s += 64


def profile(model: nn.Module, batch: Any = None, loss: Any = None, optimizer: Any = None) -> Any:
    batch = torch.ones(2, 8) if batch is None else batch
    return profile_model(model, batch, loss, optimizer, iterations=3, warmup=1, clock=Hourglass())


def job_of(model: nn.Module, batch: Any = None) -> Job:
    found: Job = profile(model, batch).job
    return found


def uses(job: Job) -> dict[str, list[str]]:
    return {tensor.name: [job.layers[i].name for i in tensor.layers] for tensor in job.tensors}


# --- times --------------------------------------------------------------------------------------


def test_a_chain_is_found_exactly() -> None:
    model = nn.Sequential(Timed(1, 2), Plain(4, 8), Timed(16, 32))
    optimizer = TimedSGD(model.parameters(), lr=0.1)
    found = profile(model, loss=lambda x: takes(x, 128, 256).sum(), optimizer=optimizer)
    assert found.job == Job(
        "Sequential",
        (
            Layer("0", 1 + 4, 2 + 8, 32),  # what has no parameters counts for the one before
            Layer("2", 16, 32, 32),  # equal bytes: each half of the update
            Layer("(loss)", 128, 256),
        ),
        (Tensor("0.weight", 32, (0,)), Tensor("2.weight", 32, (1,))),
    )
    assert {name: time.median_s for name, time in found.stages.items()} == {
        "forward": 21,
        "loss": 128,
        "backward": 2 + 8 + 32 + 256,
        "update": 64,
        "other": 0,
    }
    assert found.iteration.median_s == found.observed.median_s == found.job.compute_s == 511
    assert (found.overhead_s, found.mark_s, found.iteration.spread_s) == (0, 0, 0)


calls = st.lists(st.integers(0, 3), min_size=1, max_size=6)
times = st.lists(st.integers(0, 50), min_size=16, max_size=16)


@settings(max_examples=25)
@given(calls, times)
def test_modules_may_be_called_again_and_other_things_between(
    order: list[int], times: list[int]
) -> None:
    modules = [Timed(*times[2 * m : 2 * m + 2]) for m in range(4)]
    between = [Plain(*times[8 + 2 * m : 10 + 2 * m]) for m in range(4)]
    steps = itertools.chain(*((modules[m], between[m]) for m in order))
    found = job_of(nn.Sequential(*steps))
    pairs = [
        [a + b for a, b in zip(modules[m].times, between[m].times, strict=True)] for m in order
    ]
    assert [layer.forward_s for layer in found.layers] == [f for f, _ in pairs] + [0]
    assert found.compute_s == sum(map(sum, pairs))
    for tensor in found.tensors:
        # Complete when the backward of its first use is over, and all above it.
        ready = sum(layer.backward_s for layer in found.layers[tensor.complete_after :])
        assert ready == sum(b for _, b in pairs[tensor.layers[0] :])
        assert [order[i] for i in tensor.layers] == [order[tensor.layers[0]]] * len(tensor.layers)
    assert sorted(i for tensor in found.tensors for i in tensor.layers) == list(range(len(order)))


def test_each_call_of_a_shared_module_has_its_own_backward_time() -> None:
    shared = Timed(1, 2)
    found = job_of(nn.Sequential(shared, Timed(4, 8), shared))
    assert [(a.name, a.forward_s, a.backward_s) for a in found.layers] == [
        ("0", 1, 2),
        ("1", 4, 8),
        ("0#2", 1, 2),
        ("(loss)", 0, 0),
    ]
    assert uses(found) == {"0.weight": ["0", "0#2"], "1.weight": ["1"]}


def test_a_frozen_layer_takes_its_time_and_has_no_tensor() -> None:
    model = nn.Sequential(Timed(1, 2), Timed(4, 8), Timed(16, 32))
    model[1].requires_grad_(False)
    found = job_of(model)
    assert [(a.forward_s, a.backward_s) for a in found.layers[:3]] == [(1, 2), (4, 8), (16, 32)]
    assert uses(found) == {"0.weight": ["0"], "2.weight": ["2"]}


class Forked(nn.Module):
    """Two layers read the same; only one of them is trained."""

    def __init__(self, frozen: str) -> None:
        super().__init__()
        self.first, self.left, self.right = Timed(1, 2), Timed(4, 8), Timed(16, 32)
        self.get_submodule(frozen).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        return self.left(x) + self.right(x)


@pytest.mark.parametrize("frozen", ["left", "right"])
def test_a_frozen_layer_beside_another_is_not_done_later_than_it_is(frozen: str) -> None:
    found = job_of(Forked(frozen))
    assert [layer.backward_s for layer in found.layers] == [2, 8, 32, 0]


class Recomputing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.plain, self.second = Timed(1, 2), Plain(4, 8), Timed(16, 32)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(lambda y: self.second(self.plain(y)), self.first(x), use_reentrant=False)


def test_a_forward_that_backward_repeats_is_backward() -> None:
    found = job_of(Recomputing())
    assert [(a.name, a.forward_s, a.backward_s) for a in found.layers[:2]] == [
        ("first", 1 + 4, 2 + 8),
        ("second", 16, 32 + 4),  # what the second needs is computed again
    ]


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        Hourglass.now_s += 3
        return torch.full((8,), float(index))


def test_a_data_loader_is_timed_and_begins_again_when_it_is_through() -> None:
    found = profile(Timed(1, 2), DataLoader(Numbers(), batch_size=2))
    assert found.stages["load"].median_s == 6
    assert found.job.outside_s == 6
    assert found.job.compute_s == 9


def test_a_batch_that_lies_elsewhere_is_copied_in_every_iteration() -> None:
    model = Timed(1, 2).to("meta")
    assert "copy" in profile(model, torch.ones(2, 8)).stages
    assert "copy" not in profile(Timed(1, 2)).stages


# --- who uses what ------------------------------------------------------------------------------


def test_layers_come_in_the_order_of_use_not_of_registration() -> None:
    model = nn.ModuleDict({"last": Timed(1, 2), "first": Timed(4, 8)})
    model.forward = lambda x: model["last"](model["first"](x))  # type: ignore[method-assign]
    assert [layer.name for layer in job_of(model).layers] == ["first", "last", "(loss)"]


def test_a_layer_may_have_several_tensors() -> None:
    found = job_of(nn.Linear(8, 3))
    assert found.tensors == (Tensor("weight", 96, (0,)), Tensor("bias", 12, (0,)))
    assert [layer.name for layer in found.layers] == ["(model)", "(loss)"]


def test_a_tied_weight_is_one_tensor_of_two_layers() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.LayerNorm(4), nn.Linear(4, 10, bias=False))
    model[2].weight = model[0].weight
    found = job_of(model, torch.arange(6))
    assert uses(found)["0.weight"] == ["0", "2"]
    assert found.total_bytes == 160 + 2 * 16


def test_a_weight_that_is_tied_by_a_function_is_needed_where_its_module_is() -> None:
    found = job_of(Tied(), torch.randn(8, 24))
    assert uses(found)["embedding.weight"] == ["embedding"]
    assert uses(found)["scale"] == ["(model)"]


def test_a_module_that_is_never_called_leaves_its_weights_to_the_one_around_it() -> None:
    attention = nn.MultiheadAttention(8, 2)
    x = torch.randn(3, 2, 8)
    found = job_of(nn.Sequential(nn.Linear(8, 8), Attending(attention)), x)
    assert uses(found)["1.attention.out_proj.weight"] == ["1.attention"]


class Attending(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x)[0]


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x)


def test_unused_parameters_are_named_and_left_out() -> None:
    found = profile(WithUnused())
    assert [tensor.name for tensor in found.job.tensors] == ["used.weight", "used.bias"]
    assert [layer.name for layer in found.job.layers] == ["used", "(loss)"]
    assert found.notes == (
        "unused, since they got no gradient: unused.weight, unused.bias (2 of 4)",
    )


def test_a_parameter_without_elements_is_no_tensor() -> None:
    found = job_of(Empty(), torch.ones(2, 24))
    assert [tensor.name for tensor in found.tensors] == ["layer.weight", "layer.bias"]


class Late(nn.Module):
    """Uses a weight by a function, and not yet in the first iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.extra = Timed(1, 2), nn.ParameterList([torch.ones(8)])
        self.first = True

    def forward(self, x: torch.Tensor) -> Any:
        x, self.first = self.layer(x) * (1 if self.first else self.extra[0]), False
        return x


def test_a_weight_that_nobody_was_seen_to_use_is_needed_from_the_start() -> None:
    assert uses(job_of(Late()))["extra.0"] == ["layer"]


class Cold(nn.Module):
    """Slow for the first three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.extra_s = Timed(1, 2), iter([100.0, 100.0, 100.0])

    def forward(self, x: torch.Tensor) -> Any:
        return takes(self.layer(x), next(self.extra_s, 0.0), 0.0)


def test_the_warm_up_does_not_count() -> None:
    found = profile_model(
        Cold(), torch.ones(2, 8), None, None, iterations=3, warmup=3, clock=Hourglass()
    )
    assert (found.iteration.median_s, found.iteration.spread_s) == (3, 0)
    assert (found.observed.median_s, found.observed.spread_s) == (3, 0)


class Fickle(nn.Module):
    """Another order at times."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.a, self.b = Timed(1, 2), Timed(4, 8)
        self.turns = itertools.cycle([True] + [False] * (period - 1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.a(self.b(x)) if next(self.turns) else self.b(self.a(x))


def test_iterations_that_go_another_way_are_left_out_and_counted() -> None:
    found = profile(Fickle(4))
    assert [layer.name for layer in found.job.layers] == ["a", "b", "(loss)"]
    assert found.counted == 2
    assert found.notes == (
        "1 of 3 iterations are left out: they called other modules, or in another order",
    )


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Timed(1, 2) for _ in range(6))
        self.orders = itertools.permutations(self.layers)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in next(self.orders):
            x = layer(x)
        return x


def test_a_model_without_any_order_is_refused() -> None:
    with pytest.raises(NotSupported, match="most iterations call the modules in different orders"):
        profile(Random())


def test_the_note_says_when_a_model_is_not_in_training_mode() -> None:
    assert "eval mode" in profile(chain().eval(), torch.ones(2, 24)).notes[0]


def test_many_page_faults_are_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = itertools.count(0, 60_000)
    monkeypatch.setattr("bytelane.measure.loop._page_faults", lambda: next(faults))
    (note,) = profile(Timed(1, 2)).notes
    assert note.startswith("10000 page faults per iteration")


# --- batches and losses -------------------------------------------------------------------------


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        return {"loss": nn.functional.cross_entropy(y, labels), "logits": y}


@pytest.mark.parametrize(
    ("model", "batch", "loss"),
    [
        (nn.Linear(8, 4), torch.ones(2, 8), None),
        (nn.Linear(8, 4), torch.ones(2, 8), lambda y: y.square().mean()),
        (nn.Linear(8, 4), (torch.ones(2, 8), torch.tensor([0, 3])), nn.CrossEntropyLoss()),
        (nn.Bilinear(8, 8, 4), (torch.ones(2, 8), torch.ones(2, 8)), None),
        (Keywords(), {"x": torch.ones(2, 8), "labels": torch.tensor([0, 3])}, None),
        (nn.LSTM(8, 4), torch.ones(2, 3, 8), None),  # returns a tuple
    ],
)
def test_all_kinds_of_batches_and_losses(model: nn.Module, batch: Any, loss: Any) -> None:
    assert len(profile(model, batch, loss).job.tensors) == len(list(model.parameters()))


def test_an_output_without_a_number_asks_for_a_loss() -> None:
    model = nn.ModuleDict({"a": Timed(1, 2)})
    model.forward = lambda x: {"y": model["a"](x)}  # type: ignore[method-assign]
    with pytest.raises(InputError, match="returns a dict without a loss; give loss="):
        profile(model)


@pytest.mark.parametrize(
    ("model", "settings", "complaint"),
    [
        (nn.Linear(2, 2), {"iterations": 2}, "2 iterations are too few"),
        (nn.Linear(2, 2), {"warmup": 0}, "a warm-up of 0 iterations"),
        (nn.ReLU(), {}, "no parameter to train"),
        (nn.Linear(2, 2).requires_grad_(False), {}, "no parameter to train"),
        (nn.Linear(2, 2).to("meta"), {}, "a model on 'meta' cannot be timed"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to("meta")), {}, "only one device"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    model: nn.Module, settings: dict[str, int], complaint: str
) -> None:
    with pytest.raises((InputError, NotSupported), match=complaint):
        bytelane.profile(model, torch.ones(1, 2), **settings)


def test_a_data_loader_without_data_is_refused() -> None:
    with pytest.raises(InputError, match="no batch to give"):
        profile(nn.Linear(2, 2), DataLoader([]))  # type: ignore[arg-type]


# --- no trace -----------------------------------------------------------------------------------


class Restless(nn.Module):
    """Changes everything it can: weights by its optimizer, buffers, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4)
        )
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        self.count = self.count + random.random() + np.random.random()
        return self.layers(x)


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
    flat = [
        *copy.deepcopy(list(model.state_dict().values())),
        *copy.deepcopy([p.grad for p in model.parameters()]),
        torch.get_rng_state(),
    ]
    return [
        [None if one is None else one.tolist() for one in flat],
        [id(p.grad) for p in model.parameters()],
        [id(b) for b in model.buffers()],
        [id(group) for group in optimizer.param_groups],
        str(optimizer.state_dict()),
        sorted(vars(optimizer)),
        random.getstate(),
        str(np.random.get_state()),
        hooks,
        [m.training for m in model.modules()],
    ]


@pytest.fixture(params=["sgd", "adamw"])
def trained(request: pytest.FixtureRequest) -> Iterator[tuple[nn.Module, torch.optim.Optimizer]]:
    """In the middle of training: gradients, momentum and a schedule are there."""
    torch.manual_seed(3)
    model = Restless()
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if request.param == "sgd"
        else torch.optim.AdamW(model.parameters())
    )
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    return model, optimizer


def test_profiling_leaves_no_trace(trained: tuple[nn.Module, torch.optim.Optimizer]) -> None:
    model, optimizer = trained
    before = everything(model, optimizer)
    bytelane.profile(model, torch.ones(4, 8), optimizer=optimizer, iterations=3)
    assert everything(model, optimizer) == before


def test_no_trace_is_left_either_when_the_model_fails(
    trained: tuple[nn.Module, torch.optim.Optimizer],
) -> None:
    model, optimizer = trained
    before = everything(model, optimizer)
    seen = itertools.count()

    def loss(y: torch.Tensor) -> torch.Tensor:
        if next(seen) == 4:
            raise ArithmeticError("on purpose")
        return y.sum()

    with pytest.raises(ArithmeticError, match="on purpose"):
        bytelane.profile(model, torch.ones(4, 8), loss, optimizer, iterations=3)
    assert everything(model, optimizer) == before


class Counting(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.param_groups[0]["steps"] += 1


def test_an_optimizer_may_count_in_its_settings() -> None:
    model = nn.Linear(2, 2)
    optimizer = Counting([{"params": model.parameters(), "steps": 5}], lr=0.1)
    bytelane.profile(model, torch.ones(1, 2), optimizer=optimizer, iterations=3)
    assert optimizer.param_groups[0]["steps"] == 5


def test_a_fresh_optimizer_is_still_fresh_afterwards() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    bytelane.profile(model, torch.ones(1, 2), optimizer=optimizer, iterations=3)
    assert len(optimizer.state) == 0
    assert all(p.grad is None for p in model.parameters())


# --- real time ----------------------------------------------------------------------------------


def test_with_a_real_clock_the_job_takes_the_median_of_the_unobserved_iterations(
    tmp_path: Path,
) -> None:
    model = chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = bytelane.profile(model, torch.ones(2, 24), optimizer=optimizer, iterations=3)
    assert found.job.compute_s == pytest.approx(found.iteration.median_s)
    assert found.job.compute_s == pytest.approx(sum(t.median_s for t in found.stages.values()))
    assert found.marks == 2 + 4 + 8 + 1 + 3  # in and out, gates, gradients, loss, stages
    save(found.job, tmp_path / "job.toml")
    assert bytelane.simulate(load(tmp_path / "job.toml"), workers=1).iteration_s == pytest.approx(
        found.iteration.median_s
    )


def test_a_gpu_is_asked_for_its_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        recorded = itertools.count(100)

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_ms = next(Event.recorded)

        def elapsed_time(self, end: "Event") -> int:
            return end.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    clock = CudaClock()
    assert clock.seconds([clock.moment() for _ in range(3)]) == [0, 1e-3, 2e-3]
