"""Mark what torch has no hooks for, by functions that are replaced for a while."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import dataloader

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
    """Give an attribute another value for a while."""
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
    def tap(*arguments: Any, **keywords: Any) -> None:
        if recorder.stage == "backward":  # checkpointing does that
            backward(*arguments, **keywords)
            return
        recorder.mark("backward")
        backward(*arguments, **keywords)
        recorder.mark("other")

    return replaced(torch.autograd, "backward", tap)


def _tap_loaders(recorder: Recorder) -> contextlib.AbstractContextManager[None]:
    iterator = dataloader._BaseDataLoaderIter
    get = iterator.__next__

    @functools.wraps(get)
    def tap(self: Any) -> Any:
        if recorder.stage != "other":
            return get(self)
        recorder.mark("load")
        try:
            return get(self)
        finally:
            recorder.mark("other")

    return replaced(iterator, "__next__", tap)


def _tap_copies(recorder: Recorder, name: str) -> contextlib.AbstractContextManager[None]:
    move = getattr(torch.Tensor, name)

    @functools.wraps(move)
    def tap(self: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        began = recorder.now()
        moved: torch.Tensor = move(self, *arguments, **keywords)
        if recorder.stage == "other" and moved.device != self.device:
            recorder.mark_at(began, "copy")
            recorder.mark("other")
        return moved

    return replaced(torch.Tensor, name, tap)
