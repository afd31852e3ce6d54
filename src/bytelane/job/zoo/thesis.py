"""The two synthetic ResNets of "Making DDNNs Friendlier In The Data Center".

Neither has an architecture: sizes rise in three steps from the first layer to the last, forward
times fall and backward times rise evenly, and both are scaled to a given total.
"""

import math

from bytelane.errors import InputError
from bytelane.job.job import Job, Layer, Tensor

_LAYERS = 50
_FORWARD_PART = 1 / 3  # forward to backward is 1 to 2


def thesis_4(
    *, layers: int = _LAYERS, model_bytes: int = 100_000_000, compute_s: float = 0.9
) -> Job:
    """Build the job of chapter 4's event simulator.

    Its rule counts layers from 0 and counts the middle one as small, so 50 layers hold 96.9 of the
    nominal 100 MB; only this reproduces its published iteration times. (Its table says 100 layers;
    its figure is reproduced with 50.)
    """
    if layers < 2:
        raise InputError(f"a job of {layers} layers has no slope; 2 or more will do")
    sizes = [
        round(_steps(i, layers // 2 + 1, layers) * 2 * model_bytes / (9 * layers))
        for i in range(layers)
    ]
    return _job("thesis-4", sizes, compute_s)


def thesis_5(*, compute_s: float = 0.56) -> Job:
    """Build the job of chapter 5's packet simulator, 98,222,124 bytes.

    It computes for R x 140 ms, R being 16, 8, 4 or 2 times what it communicates at 10 Gbit/s; the
    default is R = 4. Unlike in chapter 4, layer 25 has a middle size.
    """
    base = int(2e8 / 450)
    return _job("thesis-5", [_steps(i, 25, _LAYERS) * base for i in range(_LAYERS)], compute_s)


def _steps(layer: int, small: int, layers: int) -> int:
    """Return a layer's size in units of the smallest."""
    if layer < small:
        return 1
    return 4 if layer <= 3 * layers // 4 else 12


def _job(name: str, sizes: list[int], compute_s: float) -> Job:
    """Give layers of these sizes their times.

    A straight line that ends at 0 would leave one layer without any time in each pass. The thesis
    gives that layer one step, so an iteration is those two steps longer than ``compute_s``.
    """
    if not (math.isfinite(compute_s) and compute_s > 0):
        raise InputError(f"compute_s is {compute_s}; a time to share out must be positive")
    last = len(sizes) - 1
    steps = last * len(sizes) / 2
    forward_s = compute_s * _FORWARD_PART / steps
    backward_s = compute_s * (1 - _FORWARD_PART) / steps
    layers = [
        Layer(f"layer{i}", max(last - i, 1) * forward_s, max(i, 1) * backward_s)
        for i in range(len(sizes))
    ]
    tensors = [Tensor(layer.name, sizes[i], (i,)) for i, layer in enumerate(layers)]
    return Job(name, tuple(layers), tuple(tensors))
