"""Carry operations with torch.distributed all-reduces on a process group of their own.

Each operation has a flat buffer. The moment a gradient is complete it is copied into it, divided by
the number of workers *before* the sum, as DDP does. The last element of a buffer is a stamp
made of plan, iteration and operation: collectives match by launch order, and gloo adds up whatever
meets. If two ranks ever launch different operations, the stamps do not add up, and the sum is not
applied.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from bytelane.core import Done, Plan
from bytelane.errors import PlanMismatch

# Integers up to this are exact in float32, also as a sum.
EXACT_INTEGERS = 2**24


class AllReduceTransport:
    """The buffers of a plan, and the process group that sums them."""

    def __init__(
        self, plan: Plan, dtype: torch.dtype, group: dist.ProcessGroup, names: Sequence[str]
    ) -> None:
        self._plan = plan
        self._group = group
        self._names = names
        self._world = group.size()
        self._round = 0
        self._first_stamp = int(plan.digest[:8], 16)
        size = dtype.itemsize
        self._buffers = [
            torch.zeros(operation.bytes // size + 1, dtype=dtype) for operation in plan.operations
        ]
        # Tensor -> (operation, where in its buffer, where in the tensor, how many), in elements.
        self._places: list[list[tuple[int, int, int, int]]] = [[] for _ in plan.tensor_bytes]
        for number, operation in enumerate(plan.operations):
            offset = 0
            for part in operation.parts:
                count = part.bytes // size
                self._places[part.tensor].append((number, offset, part.start // size, count))
                offset += count

    def begin_iteration(self) -> None:
        self._round += 1

    def take(self, tensor: int, gradient: torch.Tensor) -> None:
        """Copy a local gradient into the buffers, divided by the number of workers."""
        flat = gradient.detach().reshape(-1)
        for operation, offset, start, count in self._places[tensor]:
            target = self._buffers[operation][offset : offset + count]
            torch.mul(flat[start : start + count], 1.0 / self._world, out=target)

    def give(self, tensor: int, gradient: torch.Tensor) -> None:
        """Copy the sum out of the buffers."""
        contiguous = gradient.is_contiguous()
        flat = gradient.view(-1) if contiguous else torch.empty_like(gradient).reshape(-1)
        for operation, offset, start, count in self._places[tensor]:
            flat[start : start + count].copy_(self._buffers[operation][offset : offset + count])
        if not contiguous:
            gradient.copy_(flat.view(gradient.shape))

    def start(self, operation: int, done: Done) -> None:
        """Launch one all-reduce; ``done`` is called from one of gloo's threads."""
        buffer = self._buffers[operation]
        stamp = self._stamp(operation)
        buffer[-1] = stamp
        # The group itself, not torch.distributed: half the cost of a launch, and it still carries
        # what is in flight after the user's destroy_process_group() at the end of a script.
        work = self._group.allreduce([buffer])

        def completed(future: torch.futures.Future[object]) -> None:
            try:
                future.value()
            except Exception as error:
                done(operation, error)
            else:
                done(operation, self._check(operation, stamp))

        work.get_future().add_done_callback(completed)

    def _stamp(self, operation: int) -> int:
        number = self._first_stamp + self._round * len(self._buffers) + operation
        return number % (EXACT_INTEGERS // self._world)

    def _check(self, operation: int, stamp: int) -> PlanMismatch | None:
        found = float(self._buffers[operation][-1])
        if found == stamp * self._world:
            return None
        name = self._names[self._plan.operations[operation].parts[0].tensor]
        return PlanMismatch(
            f"operation {operation} ({name}) met another operation on another rank: "
            f"the stamps add up to {found:g} instead of {stamp * self._world}; it was not applied"
        )
