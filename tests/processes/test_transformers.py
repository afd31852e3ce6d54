"""Transformers' Trainer with Bytelane does what it does with DDP."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from ranks import Pool

SENTENCES, WORDS, VOCABULARY = 48, 6, 32


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """Two processes of their own: the library changes much in them."""
    with Pool(2) as pool:
        pool.run(load_library)  # that alone takes long
        yield pool


def load_library(rank: int) -> None:
    from transformers import GPT2LMHeadModel, Trainer  # noqa: F401


def make_trainer(rank: int, ours: bool, folder: str, **options: Any) -> Any:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    os.environ |= {"ACCELERATE_USE_CPU": "true"}  # the ranks are there already
    from accelerate.state import AcceleratorState, GradientState
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from bytelane.integrations.transformers import BytelaneTrainer

    class Ours(BytelaneTrainer):
        knobs: ClassVar = {"policy": "bytescheduler", "partition": 1024, "credit": 2048}

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.manual_seed(3)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": WORDS, "vocab_size": VOCABULARY}
    words = torch.randint(VOCABULARY, (SENTENCES, WORDS))
    arguments = TrainingArguments(
        folder, use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=100, **options
    )
    return (Ours if ours else Trainer)(
        model=GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0)),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in words],
    )


def trained(rank: int, ours: bool, times: int = 1, **options: Any) -> dict[str, torch.Tensor]:
    options = {"num_train_epochs": 1, "per_device_train_batch_size": 4, **options}
    trainer = make_trainer(rank, ours, save_strategy="no", **options)
    for _ in range(times):
        trainer.train()
    state: dict[str, torch.Tensor] = trainer.model.state_dict()
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "weight_decay": 0.1},
        {"ddp_bucket_cap_mb": 1, "ddp_static_graph": True, "ddp_find_unused_parameters": False},
        {"times": 2},
    ],
    ids=["plain", "accumulated and clipped", "told much about DDP", "trained twice"],
)
def test_weights_equal_ddps_to_the_last_bit(
    ranks: Pool, tmp_path: Path, options: dict[str, Any]
) -> None:
    theirs, ours = (
        ranks.run(trained, ours=one, folder=str(tmp_path), **options) for one in (False, True)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
