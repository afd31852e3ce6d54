"""``bytelane.profile``: measure a model, and return its job."""

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
    """Measure the computing time and the gradient bytes of each layer; ``.job`` is the job.

    The model trains for some iterations; then it, the optimizer and all random states are restored.
    That needs memory for a copy of them.

    ``batch`` is a tensor, a dict (passed as keywords), a tuple (as arguments), or a DataLoader of
    those, whose time then counts as loading. With a ``loss`` the last of a tuple is
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
