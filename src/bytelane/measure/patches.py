"""Patch torch functions that have no hooks: backward, data loaders, copies between devices."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from bytelane.measure.record import Recorder


@contextlib.contextmanager
def tapped(recorder: Recorder) -> Iterator[None]:
    """Mark backward passes, batches of data loaders, and copies from one device to another."""
    with (
        _tap_backward(recorder),
        _tap_loaders(recorder),
        _tap_copies(recorder, "to"),
        _tap_copies(recorder, "cuda"),
    ):
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute inside the block."""
    inherited = name not in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _tap_backward(recorder: Recorder) -> contextlib.AbstractContextManager[None]:
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def patch(*arguments: Any, **keywords: Any) -> None:
        if recorder.stage == "backward":  # nested, by checkpointing
            backward(*arguments, **keywords)
            return
        recorder.mark("backward")
        backward(*arguments, **keywords)
        recorder.mark("other")

    return replaced(torch.autograd, "backward", patch)


def _tap_loaders(recorder: Recorder) -> contextlib.AbstractContextManager[None]:
    # All iterators of loaders inherit from it. Own generator: the global one must not advance.
    nothing = TensorDataset(torch.zeros(0))
    some = type(iter(DataLoader(nothing, generator=torch.Generator())))
    iterator: Any = next(kind for kind in some.__mro__ if "__next__" in vars(kind))
    get = iterator.__next__

    @functools.wraps(get)
    def patch(self: Any) -> Any:
        if recorder.stage != "other":
            return get(self)
        recorder.mark("load")
        try:
            return get(self)
        finally:
            recorder.mark("other")

    return replaced(iterator, "__next__", patch)


def _tap_copies(recorder: Recorder, name: str) -> contextlib.AbstractContextManager[None]:
    move = getattr(torch.Tensor, name)

    @functools.wraps(move)
    def patch(self: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        began = recorder.now()
        moved: torch.Tensor = move(self, *arguments, **keywords)
        if recorder.stage == "other" and moved.device != self.device:
            recorder.mark_at(began, "copy")
            recorder.mark("other")
        return moved

    return replaced(torch.Tensor, name, patch)
