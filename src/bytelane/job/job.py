"""A training job: one iteration of computing, and the tensors it has to synchronise.

One compute stream serialises any graph, so a job is a *list* of layers. Forward runs it from first
to last and backward from last to first. A tensor names every layer that uses it; so tied weights,
several tensors per layer and layers without parameters need no special case.
"""

import math
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bytelane.errors import InputError
from bytelane.units import LONGEST_S
from bytelane.values import as_whole, require_number, shown

LARGEST_TENSOR = 2**50


class Layer(msgspec.Struct, frozen=True):
    """One step of the model's forward pass, with its times."""

    name: str
    forward_s: float
    backward_s: float
    update_s: float = 0.0
    after: tuple[int, ...] | None = None
    """The layers whose output this one reads; None: just the one before it."""

    def __post_init__(self) -> None:
        for field in ("forward_s", "backward_s", "update_s"):
            require_number(getattr(self, field), f"{field} of layer {self.name!r}", 0, LONGEST_S)

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s + self.update_s


class Tensor(msgspec.Struct, frozen=True):
    """A parameter whose gradient is summed over the workers in every iteration."""

    name: str
    bytes: int
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= as_whole(self.bytes, f"bytes of tensor {self.name!r}") <= LARGEST_TENSOR:
            size = shown(self.bytes)
            raise InputError(f"tensor {self.name!r} has {size} bytes; 1 to 2**50 will do")
        if not self.layers:
            raise InputError(f"tensor {self.name!r} is used by no layer")
        if any(a >= b for a, b in zip(self.layers, self.layers[1:], strict=False)):
            raise InputError(f"layers of tensor {self.name!r} must rise: {list(self.layers)}")

    @property
    def complete_after(self) -> int:
        """The layer whose backward pass adds the last contribution to the gradient."""
        return self.layers[0]

    @property
    def needed_by(self) -> int:
        """The first layer whose forward pass reads the tensor."""
        return self.layers[0]


class Columns(NamedTuple):
    """A job as arrays, for code that handles all layers or all tensors at once."""

    bytes: npt.NDArray[np.int64]
    complete_after: npt.NDArray[np.int64]
    needed_by: npt.NDArray[np.int64]
    completes_from: npt.NDArray[np.int64]
    completes: npt.NDArray[np.int64]
    """Layer -> the tensors whose gradient its backward pass completes."""
    step_s: npt.NDArray[np.float64]
    """The steps that a worker computes per iteration, in this order: update and forward pass of
    each layer, the backward passes from the last layer to the first, the time outside the model."""


class Job(msgspec.Struct, frozen=True, dict=True):
    """Layers in execution order, tensors, and the seconds per iteration outside the model."""

    name: str
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    outside_s: float = 0.0

    def __post_init__(self) -> None:
        require_number(self.outside_s, "outside_s", 0, LONGEST_S)
        if not self.layers:
            raise InputError(f"job {self.name!r} has no layers; it needs at least one")
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            if layer.after and not 0 <= min(layer.after) <= max(layer.after) < index:
                raise InputError(
                    f"layer {layer.name!r} comes after layers {list(layer.after)}, "
                    f"but it is number {index} itself"
                )
        for tensor in self.tensors:
            if not 0 <= tensor.layers[0] <= tensor.layers[-1] <= last:
                raise InputError(
                    f"tensor {tensor.name!r} names layers {list(tensor.layers)}, "
                    f"but the layers are numbered 0 to {last}"
                )

    @cached_property
    def columns(self) -> Columns:
        """The tensors' and layers' numbers as arrays, made once. They must not be written to."""
        tensors, layers = self.tensors, self.layers
        complete_after = np.array([t.complete_after for t in tensors], dtype=np.int64)
        completes = np.argsort(complete_after, kind="stable")
        completes_from = np.searchsorted(complete_after[completes], np.arange(len(layers) + 1))
        return Columns(
            np.array([t.bytes for t in tensors], dtype=np.int64),
            complete_after,
            np.array([t.needed_by for t in tensors], dtype=np.int64),
            completes_from,
            completes,
            np.array(
                [
                    *(seconds for a in layers for seconds in (a.update_s, a.forward_s)),
                    *(a.backward_s for a in reversed(layers)),
                    self.outside_s,
                ],
                dtype=np.float64,
            ),
        )

    @cached_property
    def total_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @cached_property
    def compute_s(self) -> float:
        """The time per iteration without communication."""
        return math.fsum(layer.compute_s for layer in self.layers) + self.outside_s
