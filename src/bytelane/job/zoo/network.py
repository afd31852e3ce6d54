"""Model architectures: operations in forward order, their shapes, FLOPs and parameters."""

import math
from typing import NamedTuple

import msgspec


class Image(NamedTuple):
    """The shape of an image or of feature maps."""

    channels: int
    height: int
    width: int

    @property
    def elements(self) -> int:
        return self.channels * self.height * self.width

    def pool(self, kernel: int, stride: int, padding: int = 0) -> "Image":
        """Return the shape after pooling; a last window that does not fit is dropped."""
        height, width = (
            (size + 2 * padding - kernel) // stride + 1 for size in (self.height, self.width)
        )
        return Image(self.channels, height, width)

    def pool_to(self, size: int) -> "Image":
        """Return the shape after pooling to a square of a given size."""
        return Image(self.channels, size, size)

    def upsample(self, factor: int) -> "Image":
        return Image(self.channels, self.height * factor, self.width * factor)

    def concat(self, *others: "Image") -> "Image":
        """Stack feature maps; only their channels may differ."""
        assert all(other[1:] == self[1:] for other in others), (self, others)
        return self._replace(channels=self.channels + sum(other.channels for other in others))

    def plus(self, other: "Image") -> "Image":
        """Join a branch to the trunk: both have the same shape, and so has the sum."""
        assert self == other, (self, other)
        return self

    def flatten(self) -> "Rows":
        return Rows(1, self.elements)


class Rows(NamedTuple):
    """The shape of a sequence of tokens, each a vector. A flat vector is a single row."""

    length: int
    width: int

    @property
    def elements(self) -> int:
        return self.length * self.width


class Parameter(msgspec.Struct, frozen=True):
    """A trained tensor. Operations that hold an equal one share it."""

    name: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class Operation(msgspec.Struct, frozen=True):
    """One step of the forward pass and its costs, in FLOPs and counts of numbers."""

    name: str
    parameters: tuple[Parameter, ...]
    flops: int
    """Per sample. A multiplication and an addition are two."""
    moved: int
    """Numbers read from and written to memory, per sample."""
    moved_once: int
    """Numbers read once per iteration, whatever the batch size: the weights."""


class Network(msgspec.Struct, frozen=True):
    """An architecture, independent of accelerator and batch size."""

    sample: str
    """What one sample of a batch is."""
    operations: tuple[Operation, ...]

    @property
    def users(self) -> dict[Parameter, list[int]]:
        """Return the parameters in order of first use, each with the operations that read it."""
        found: dict[Parameter, list[int]] = {}
        for i, operation in enumerate(self.operations):
            for parameter in operation.parameters:
                found.setdefault(parameter, []).append(i)
        return found

    @property
    def parameter_count(self) -> int:
        return sum(parameter.count for parameter in self.users)

    @property
    def flops(self) -> int:
        """Return the FLOPs of one sample's forward pass."""
        return sum(operation.flops for operation in self.operations)
