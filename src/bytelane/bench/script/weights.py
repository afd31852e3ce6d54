"""Save, load and compare the final weights of runs."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from bytelane.bench.script.trial import Difference

Weights = Mapping[str, torch.Tensor]


def weights_of(modules: Iterable[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Return all parameters and buffers of several modules by name."""
    return {
        f"{number}.{name}" if number else name: value
        for number, module in enumerate(modules)
        for name, value in module.state_dict().items()
        if isinstance(value, torch.Tensor)
    }


def digest_of(modules: Iterable[torch.nn.Module]) -> str:
    """Return a hash of all parameters; ranks that agree have the same."""
    found = hashlib.sha256()
    for module in modules:
        for parameter in module.parameters():
            found.update(_bytes(parameter).numpy().tobytes())
    return found.hexdigest()


def save_weights(weights: Weights, path: Path) -> None:
    torch.save(dict(weights), path)


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def difference(one: Weights, other: Weights) -> Difference:
    """Find the largest difference; a tensor that only one of them has differs infinitely."""
    apart = [Difference(_distance(one.get(n), other.get(n)), n) for n in sorted({*one, *other})]
    worst = max(apart, key=lambda found: found.largest, default=Difference())
    return worst if worst.largest else Difference()


def _distance(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return float("inf")
    if torch.equal(_bytes(one), _bytes(other)):
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    apart = float((one.to(wide) - other.to(wide)).abs().nan_to_num(float("inf")).max())
    return apart or 5e-324  # the signs of two zeros differ


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
