"""Real models for the benchmark: ``cnn``, ``gpt``, or a function of the user's."""

import importlib
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from bytelane.errors import InputError
from bytelane.values import shown

Batch = tuple[torch.Tensor, ...]


class Task(NamedTuple):
    """What a function for ``bytelane bench`` returns."""

    model: nn.Module
    make_batch: Callable[[torch.Generator], Batch]
    """Inputs, and the target last."""
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Of output and target."""


def load_task(name: str) -> Task:
    """Build ``cnn``, ``gpt``, or the task that ``package.module:function`` returns."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    module_name, colon, function_name = name.partition(":")
    if not colon:
        known = ", ".join(BUILT_IN)
        raise InputError(f"{name!r} is neither one of {known} nor package.module:function")
    # Last: a file there must not shadow an installed package.
    sys.path.append(os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # a user's module may raise anything
        raise InputError(f"{name!r} cannot be loaded: {_reason(error)}") from None
    try:
        task = Task(*function())
    except Exception as error:
        raise InputError(
            f"{name!r} does not return a model, a function for batches and a loss: {_reason(error)}"
        ) from None
    if not isinstance(task.model, nn.Module):
        raise InputError(f"{name!r} returns {shown(task.model)} where its model should be")
    return task


def require_trainable(name: str, task: Task) -> None:
    """Train for one step, so that a bad task fails here and not in every rank of a lab."""
    try:
        *inputs, target = task.make_batch(torch.Generator().manual_seed(0))
        task.loss(task.model(*inputs), target).backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InputError(f"{name!r} cannot be trained for a step: {_reason(error)}") from None
    if all(parameter.grad is None for parameter in task.model.parameters()):
        raise InputError(f"{name!r} has no parameter that is trained")


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def cnn() -> Task:
    """Four convolutions and two linear layers, on small pictures."""
    widths = (3, 32, 64, 128, 256)
    blocks: list[nn.Module] = []
    for before, after in pairwise(widths):
        blocks += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    model = nn.Sequential(
        *blocks, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)
    )

    def make_batch(generator: torch.Generator) -> Batch:
        pictures = torch.randn(32, 3, 32, 32, generator=generator)
        return pictures, torch.randint(10, (32,), generator=generator)

    return Task(model, make_batch, functional.cross_entropy)


def gpt() -> Task:
    """Two transformer blocks; the output layer is the embedding."""

    def make_batch(generator: torch.Generator) -> Batch:
        tokens = torch.randint(_Gpt.vocabulary, (4, 65), generator=generator)
        return tokens[:, :-1], tokens[:, 1:].flatten()

    return Task(_Gpt(), make_batch, functional.cross_entropy)


class _Gpt(nn.Module):
    vocabulary = 4096
    width = 128

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(self.vocabulary, self.width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                self.width, 4, 4 * self.width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.output = nn.Linear(self.width, self.vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        logits: torch.Tensor = self.output(hidden).flatten(0, 1)
        return logits


BUILT_IN = {"cnn": cnn, "gpt": gpt}
