"""What a user may say about a prepared model while it trains. With one worker, nothing happens."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bytelane.runtime.torch.prepare import find_session


@contextmanager
def no_sync(model: torch.nn.Module) -> Iterator[None]:
    """Let gradients only add up on this rank; the next backward pass outside sums them all.

    As in DDP, the forward pass belongs inside too.
    """
    session = find_session(model)
    if session is None:
        yield
        return
    before, session.synchronising = session.synchronising, False
    try:
        yield
    finally:
        session.synchronising = before


@contextmanager
def join(model: torch.nn.Module) -> Iterator[None]:
    """Train with uneven inputs: a rank that has no data left waits here for the others.

    Gradients are still divided by the number of all ranks. In the end all ranks hold the weights of
    one that had data to the last.
    """
    session = find_session(model)
    if session is None:
        yield
        return
    session.begin_join()
    try:
        yield
        session.shadow_the_others()
    finally:
        session.joining = None
