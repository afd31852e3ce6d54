"""What a case returns, and how two of its results are compared."""

import hashlib

import torch

Values = dict[str, torch.Tensor | float | None]
LOCAL = "on this rank: "

# On 2 ranks there is one way to add two numbers, and everything is equal to the last bit. On more,
# a sum that is cut at other places is added in another order: off by up to (ranks - 1) roundings an
# element and step. Two DDPs with other buckets, on 4 ranks, are up to 8 roundings of float32 apart
# after these cases (LBFGS: 30), and up to 2 of float16 and bfloat16.
ROUNDINGS = {torch.float32: 64, torch.float64: 64, torch.float16: 8, torch.bfloat16: 8}
# What is computed more coarsely than it is kept may flip one rounding there, and that reaches a
# weight by way of the learning rate.
RATE = 1 / 8


def tolerance_of(kept: torch.dtype, computed: torch.dtype) -> float:
    """Return how far results may be apart on more than 2 ranks, relative to the largest element."""
    through_the_rate = RATE * torch.finfo(computed).eps if computed != kept else 0.0
    return ROUNDINGS[kept] * torch.finfo(kept).eps + through_the_rate


def local(**values: torch.Tensor | float | None) -> Values:
    """Name values that are each rank's own, so that they are not compared between ranks."""
    return {f"{LOCAL}{name}": value for name, value in values.items()}


def differences(found: Values, expected: Values, rounding: torch.dtype | None = None) -> list[str]:
    """Say what is not equal; with the dtype of computing, what roundings do not explain."""
    if list(found) != list(expected):
        return [f"{sorted(set(found) ^ set(expected))} are there only once, or in another order"]
    told = (_difference(name, found[name], expected[name], rounding) for name in found)
    return [sentence for sentence in told if sentence]


def _difference(name: str, found: object, expected: object, rounding: torch.dtype | None) -> str:
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return "" if found == expected else f"{name} is {found} instead of {expected}"
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{name} is {found.dtype} {tuple(found.shape)}, not {tuple(expected.shape)}"
    if torch.equal(found, expected):
        return ""
    off = (found.double() - expected.double()).abs()
    relative = float(off.max() / expected.double().abs().max().clamp(min=1e-300))
    may_round = rounding is not None and found.is_floating_point()
    if may_round and relative <= tolerance_of(found.dtype, rounding):
        return ""
    return f"{name} is off by {relative:.1e} in {int((off > 0).sum())} of {off.numel()} elements"


def digest(values: Values) -> str:
    """Return what must be the same on all ranks, as a short text."""
    whole = hashlib.sha256()
    for name, value in values.items():
        if not name.startswith(LOCAL):
            whole.update(name.encode())
            whole.update(_bytes_of(value))
    return whole.hexdigest()[:16]


def _bytes_of(value: object) -> bytes:
    if not isinstance(value, torch.Tensor):
        return repr(value).encode()
    return bytes(value.detach().contiguous().view(-1).view(torch.uint8).numpy())
