"""Accelerate's loop with Bytelane's accelerator does what it does with DDP."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bytelane.errors import NotSupported
from ranks import Pool

pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """Two processes of their own: the library changes much in them."""
    with Pool(2) as pool:
        yield pool


def make_accelerator(rank: int, ours: bool, **options: Any) -> Any:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    os.environ |= {"ACCELERATE_USE_CPU": "true"}  # the ranks are there already
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from bytelane.integrations.accelerate import BytelaneAccelerator

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    knobs = {"policy": "bytescheduler", "partition": 256, "credit": 512}
    return BytelaneAccelerator(knobs=knobs, **options) if ours else Accelerator(**options)


def make_parts() -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(torch.distributed.get_rank())
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    chance = torch.Generator().manual_seed(5)
    inputs = torch.randn(96, 8, generator=chance)
    targets = torch.randint(4, (96,), generator=chance)
    data = torch.utils.data.TensorDataset(inputs, targets)
    loader = torch.utils.data.DataLoader(data, 6)
    return model, optimizer, loader, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)


def train(
    accelerator: Any,
    model: Any,
    optimizer: Any,
    loader: Any,
    schedule: Any,
    epochs: int,
    clip: bool,
) -> None:
    for _ in range(epochs):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()


def trained(
    rank: int, ours: bool, accumulate: int, clip: bool, apart: bool = False
) -> dict[str, torch.Tensor]:
    accelerator = make_accelerator(rank, ours, gradient_accumulation_steps=accumulate)
    parts = make_parts()
    if apart:
        prepared = tuple(accelerator.prepare(part) for part in parts)
    else:
        prepared = accelerator.prepare(*parts)
    train(accelerator, *prepared, epochs=2, clip=clip)
    state: dict[str, torch.Tensor] = accelerator.unwrap_model(prepared[0]).state_dict()
    return state


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "loop",
    [
        {"accumulate": 1, "clip": False},
        {"accumulate": 1, "clip": True},
        {"accumulate": 3, "clip": False},
        {"accumulate": 3, "clip": True},
        {"accumulate": 1, "clip": False, "apart": True},
    ],
    ids=["plain", "clipped", "accumulated", "both", "prepared one by one"],
)
def test_weights_equal_ddps_to_the_last_bit(ranks: Pool, loop: dict[str, Any]) -> None:
    theirs, ours = (ranks.run(trained, ours=one, **loop) for one in (False, True))
    assert same(ours[0], theirs[0])


def resumed(rank: int, ours: bool, folder: str) -> dict[str, torch.Tensor]:
    """Save the state after an epoch, throw all away, go on from what was saved."""
    for first in (True, False):
        accelerator = make_accelerator(rank, ours)
        prepared = accelerator.prepare(*make_parts())
        if not first:
            accelerator.load_state(folder)
        train(accelerator, *prepared, epochs=1, clip=False)
        if first:
            accelerator.save_state(folder)
    state: dict[str, torch.Tensor] = accelerator.unwrap_model(prepared[0]).state_dict()
    return state


def test_a_saved_state_can_be_gone_on_from(ranks: Pool, tmp_path: Path) -> None:
    theirs, ours = (
        ranks.run(resumed, ours=one, folder=str(tmp_path / str(one))) for one in (False, True)
    )
    assert same(ours[0], theirs[0])


def refusals(rank: int) -> list[str]:
    from accelerate import DistributedDataParallelKwargs
    from accelerate.utils import DDPCommunicationHookType

    said = []
    for given in ({"comm_hook": DDPCommunicationHookType.FP16}, {"broadcast_buffers": False}):
        with pytest.raises(NotSupported) as refusal:
            make_accelerator(rank, True, kwargs_handlers=[DistributedDataParallelKwargs(**given)])
        said.append(str(refusal.value))
    accelerator = make_accelerator(rank, True)
    model, optimizer, _, _ = make_parts()
    model = accelerator.prepare(model)
    with pytest.raises(NotSupported) as refusal:
        accelerator.backward(model(torch.ones(2, 8)).sum())
    said.append(str(refusal.value))
    accelerator.prepare(optimizer)
    accelerator.backward(model(torch.ones(2, 8)).sum())
    return said


def test_what_would_train_apart_is_refused(ranks: Pool) -> None:
    about_hook, about_buffers, about_optimizer = ranks.run(refusals)[0]
    assert "communication hooks are DistributedDataParallel's own" in about_hook
    assert "broadcast_buffers=False is not supported" in about_buffers
    assert "trained without its optimizer" in about_optimizer
