"""Piggyback: a few numbers that travel behind every operation's gradients, summed with them.

They cost no message of their own::

    [ used, used, ..., signal, stamp, stamp, ... ]

*used*, one per part: 1 if this rank's backward pass has reached the tensor. If the sum is 0, no
rank has, and the gradient must not change. *signal*: rank 0's request, as a small number. *stamp*:
which operation of which step this is. Collectives match by launch order, and gloo sums whatever
matches; if two ranks ever launch different operations, the stamps do not add up, and the sum is not
applied.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

# Up to this, all integers are exact: so is every sum of numbers that are small enough.
EXACT_INTEGERS = {
    torch.float64: 2**53,
    torch.float32: 2**24,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
}
STAMP_BITS = 20


class Sum(NamedTuple):
    """The sum of all ranks' numbers."""

    used: Sequence[float]
    """Per part: how many ranks have used its tensor."""
    signal: int
    """Rank 0's request; the other ranks have sent 0."""


class Piggyback:
    """The numbers behind one operation."""

    def __init__(self, parts: int, dtype: torch.dtype, world: int) -> None:
        self._parts = parts
        self._world = world
        self._base, self._digits = digits_of(dtype, world)
        self.numbers = torch.zeros(parts + 1 + self._digits, dtype=dtype)
        # Filling it in from numpy is 10 times as fast; numpy has no bfloat16.
        self._array = None if dtype is torch.bfloat16 else self.numbers.numpy()
        self._stamp: list[int] = []

    def write(self, used: Sequence[bool], signal: int, stamp: int) -> None:
        """Fill in this rank's numbers."""
        self._stamp = [stamp // self._base**k % self._base for k in range(self._digits)]
        mine = [*used, signal, *self._stamp]
        if self._array is None:
            self.numbers.copy_(torch.tensor(mine, dtype=self.numbers.dtype))
        else:
            self._array[:] = mine

    def read(self) -> Sum | None:
        """Return the sum; None if not all ranks have sent the same operation."""
        numbers, parts = self.numbers.tolist(), self._parts
        if numbers[parts + 1 :] != [self._world * digit for digit in self._stamp]:
            return None
        return Sum(numbers[:parts], int(numbers[parts]))


def digits_of(dtype: torch.dtype, world: int) -> tuple[int, int]:
    """Return a base whose digits ``world`` ranks can sum exactly, and the digits of a stamp."""
    base = max(2, min(EXACT_INTEGERS[dtype] // world, 2**STAMP_BITS))
    count = 1
    while base**count < 2**STAMP_BITS:
        count += 1
    return base, count
