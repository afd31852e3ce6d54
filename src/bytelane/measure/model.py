"""``bytelane.profile``: a model becomes a job."""

from typing import TYPE_CHECKING, Any

from bytelane.errors import MissingExtra
from bytelane.measure.result import Profile

if TYPE_CHECKING:
    import torch

    from bytelane.measure.loop import Loss


def profile(
    model: "torch.nn.Module",
    batch: Any,
    loss: "Loss | None" = None,
    optimizer: "torch.optim.Optimizer | None" = None,
    *,
    iterations: int = 20,
    warmup: int = 3,
) -> Profile:
    """Measure what each layer of a model computes and has to synchronise; ``.job`` is the job.

    The model trains for a while as it stands, and is then put back, with the optimizer and all
    random numbers: nothing changes but the time of day. Memory for a copy of all that is needed.

    ``batch`` is a tensor, a dict (handed over as keywords), a tuple (as arguments), or a
    DataLoader of those, whose time then counts as loading. With a ``loss`` the last of a tuple is
    the target: ``loss(model(*inputs), target)``; of anything else, ``loss(model(batch))`` is taken.
    Without one it is the output's own ``loss``, or else the sum of the (first) output.

    ``iterations`` run with hooks, and as many without between them, after a ``warmup``.
    """
    try:
        from bytelane.measure.loop import profile_model
    except ImportError:
        raise MissingExtra(
            "profiling needs PyTorch; install it with: pip install 'bytelane[torch]'"
        ) from None
    return profile_model(model, batch, loss, optimizer, iterations=iterations, warmup=warmup)
