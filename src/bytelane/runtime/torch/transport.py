"""Carry operations with torch.distributed, on process groups of their own.

The gradients that autograd has made are summed where they lie. Each is divided by the number of
workers *before* the sum, as DDP does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from bytelane.core import Done, Plan
from bytelane.errors import PlanMismatch
from bytelane.runtime.torch.trailer import Trailer

# Rounds are numbered within a step of the optimizer; no step has as many.
ROUNDS_IN_A_STEP = 1009


class Gradient(NamedTuple):
    """What a rank adds to the sum of a tensor."""

    tensor: int
    value: torch.Tensor
    """Dense."""
    used: bool = True
    """Whether this rank's backward pass has made it."""


class GradientTransport(ABC):
    """The gradients of a plan, and what is told along with them; not how they are sent."""

    def __init__(
        self,
        plan: Plan,
        dtypes: Sequence[torch.dtype],
        groups: Sequence[dist.ProcessGroup],
        names: Sequence[str],
        launched: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._groups = groups
        self._names = names
        self._launched = launched
        self._world = groups[0].size()
        self._round = 0
        self._first_stamp = int(plan.digest[:8], 16)
        self._signal = 0
        self.memory: list[torch.Tensor | None] = [None] * len(plan.tensor_bytes)
        """The gradients in flight, each as one row."""
        self._used = [False] * len(plan.tensor_bytes)
        self._ranges = []
        self._trailers = []
        for operation in plan.operations:
            dtype = dtypes[operation.parts[0].tensor]
            size = dtype.itemsize
            self._ranges.append(
                [(p.tensor, p.start // size, p.stop // size) for p in operation.parts]
            )
            self._trailers.append(Trailer(len(operation.parts), dtype, self._world))
        self.used_by_anybody = [False] * len(plan.tensor_bytes)
        """Of the tensors that have arrived: whether the backward pass of some rank reached them."""
        self.signalled = 0
        """What rank 0 has said in this round that it would like."""

    def begin_round(self, step: int, number: int, *, signal: int = 0) -> None:
        """Name the round that all ranks begin; rank 0 may add a wish."""
        self._round = step * ROUNDS_IN_A_STEP + number
        self._signal = signal
        self.signalled = 0
        self.used_by_anybody = [False] * len(self._used)

    def take(self, gradients: Iterable[Gradient]) -> None:
        """Sum these gradients in place."""
        rows = []
        for tensor, gradient, used in gradients:
            row = in_memory_order(gradient)
            assert row is not None
            rows.append(row)
            self.memory[tensor] = row
            self._used[tensor] = used
        torch._foreach_mul_(rows, 1.0 / self._world)

    @abstractmethod
    def start(self, operation: int, done: Done) -> None:
        """Launch what the scheduler has started; ``done`` is called from some thread."""

    def forget(self, tensor: int) -> None:
        """Let go of a gradient that is no longer in flight."""
        self.memory[tensor] = None

    def _row(self, operation: int) -> list[torch.Tensor]:
        """Return all that is summed in an operation: its parts, and its trailer."""
        row = []
        for tensor, start, stop in self._ranges[operation]:
            memory = self.memory[tensor]
            assert memory is not None
            # Whole ones are not sliced: that costs as much as all the rest.
            row.append(memory if stop - start == memory.numel() else memory[start:stop])
        row.append(self._trailers[operation].numbers)
        return row

    def _write_trailer(self, operation: int) -> None:
        used = [self._used[tensor] for tensor, _, _ in self._ranges[operation]]
        self._trailers[operation].write(used, self._signal, self._stamp(operation))

    def _group(self, operation: int) -> dist.ProcessGroup:
        # The group itself, not torch.distributed: half the cost of a launch, and it still carries
        # what is in flight after the user's destroy_process_group() at the end of a script.
        return self._groups[self._plan.operations[operation].lane]

    def _stamp(self, operation: int) -> int:
        return self._first_stamp + self._round * len(self._ranges) + operation

    def _read_trailer(self, operation: int) -> PlanMismatch | None:
        trailer = self._trailers[operation].read()
        if trailer is None:
            name = self._names[self._ranges[operation][0][0]]
            return PlanMismatch(
                f"operation {operation} ({name}) met another operation on another rank: "
                "the stamps do not add up; it was not applied"
            )
        for (tensor, _, _), used in zip(self._ranges[operation], trailer.used, strict=True):
            if used:  # only ever set: two threads may be here at once
                self.used_by_anybody[tensor] = True
        if trailer.signal:
            self.signalled = trailer.signal
        return None


class AllReduceTransport(GradientTransport):
    """One all-reduce an operation.

    Gloo joins its parts and its trailer to one message in one of its own threads, without the
    interpreter's lock, so the only memory that this costs is that of the operations in flight.
    """

    _options = dist.AllreduceCoalescedOptions()

    def start(self, operation: int, done: Done) -> None:
        """Launch one all-reduce; ``done`` is called from one of gloo's threads."""
        row = self._row(operation)
        self._write_trailer(operation)
        self._launched()
        work = self._group(operation).allreduce_coalesced(row, self._options)

        def completed(future: torch.futures.Future[object]) -> None:
            try:
                future.value()
            except Exception as error:
                done(operation, error)
            else:
                done(operation, self._read_trailer(operation))

        work.get_future().add_done_callback(completed)


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return all elements as one row of the same memory; None if there are gaps between them."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    strides = tensor.stride()
    ordered = tensor.permute(sorted(range(tensor.dim()), key=lambda d: (-strides[d], d)))
    return ordered.view(-1) if ordered.is_contiguous() else None
