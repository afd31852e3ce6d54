"""``no_sync``, ``flush`` and ``join`` for a prepared model. With one worker they do nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bytelane.errors import NotSupported
from bytelane.foreign.torch import in_backward
from bytelane.runtime.torch.prepare import find_session


@contextmanager
def no_sync(model: torch.nn.Module) -> Iterator[None]:
    """Accumulate gradients on this rank only; the next backward pass outside sums them all.

    As in DDP, the forward pass belongs inside too.
    """
    session = find_session(model)
    if session is None:
        yield
        return
    before, session.forward.is_synchronising = session.forward.is_synchronising, False
    try:
        yield
    finally:
        session.forward.is_synchronising = before


def flush(model: torch.nn.Module) -> None:
    """Bring all weights and gradients up to date: wait for them, and make every deferred update.

    Reading a parameter through torch does so for that parameter. Call this before other uses:
    memory that numpy or C++ code shares with a parameter, or another thread.
    """
    session = find_session(model)
    if session is None:
        return
    if in_backward():
        raise NotSupported("flush() was called within a backward pass; call it after backward()")
    session.sync.land()
    session.sync.settle_owed()


@contextmanager
def join(model: torch.nn.Module) -> Iterator[None]:
    """Train with uneven inputs: a rank that has no data left waits here for the others.

    Gradients are still divided by the number of all ranks. In the end all ranks hold the weights of
    a rank that had data until the last iteration.
    """
    session = find_session(model)
    if session is None:
        yield
        return
    session.begin_join()
    try:
        yield
        session.forward.shadow_the_others()
    finally:
        session.forward.uneven = None
