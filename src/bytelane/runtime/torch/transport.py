"""Transports by torch.distributed: sum gradients in place, by all-reduce, on own process groups.

Each gradient is divided by the number of workers *before* the sum, as DDP does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist

from bytelane.core import Plan
from bytelane.errors import PlanMismatch
from bytelane.foreign.torch import multiply_all
from bytelane.runtime.sync import Contribution, Done, Message
from bytelane.runtime.torch.piggyback import Piggyback

# Rounds are numbered within a step of the optimizer; no step has as many.
ROUNDS_IN_A_STEP = 1009


class GradientTransport(ABC):
    """The gradients of a plan and their piggybacks; subclasses send them."""

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
        self._piggybacks = []
        for operation in plan.operations:
            dtype = dtypes[operation.parts[0].tensor]
            size = dtype.itemsize
            self._ranges.append(
                [(p.tensor, p.start // size, p.stop // size) for p in operation.parts]
            )
            self._piggybacks.append(Piggyback(len(operation.parts), dtype, self._world))
        self._used_by_anybody = [False] * len(plan.tensor_bytes)
        self.signalled = 0
        """Rank 0's signal in this round."""

    def begin_round(self, step: int, number: int, *, signal: int = 0) -> None:
        """Name the round that all ranks begin; rank 0 may add a signal."""
        self._round = step * ROUNDS_IN_A_STEP + number
        self._signal = signal
        self.signalled = 0
        self._used_by_anybody = [False] * len(self._used)

    def take(self, contributions: Iterable[Contribution]) -> None:
        """Keep these gradients, to be summed in place, and divide them by the number of ranks."""
        rows = []
        for tensor, gradient, used in contributions:
            row = in_memory_order(gradient)
            assert row is not None
            rows.append(row)
            self.memory[tensor] = row
            self._used[tensor] = used
        multiply_all(rows, 1.0 / self._world)

    @abstractmethod
    def start(self, message: Message, done: Done) -> None:
        """Launch a message that the scheduler has started; ``done`` is called from some thread.

        Under a plan a message is one operation.
        """

    def was_used(self, tensor: int) -> bool:
        """Tell, of a tensor that has arrived, whether any rank's backward pass has reached it."""
        return self._used_by_anybody[tensor]

    def forget(self, tensor: int) -> None:
        """Drop the reference to a gradient that is no longer in flight."""
        self.memory[tensor] = None

    def _row(self, operation: int) -> list[torch.Tensor]:
        """Return the tensors that an operation sums: its parts, and its piggyback."""
        row = []
        for tensor, start, stop in self._ranges[operation]:
            memory = self.memory[tensor]
            assert memory is not None
            # Whole gradients are not sliced: that costs as much as the rest of a launch.
            row.append(memory if stop - start == memory.numel() else memory[start:stop])
        row.append(self._piggybacks[operation].numbers)
        return row

    def _write_piggyback(self, operation: int) -> None:
        used = [self._used[tensor] for tensor, _, _ in self._ranges[operation]]
        self._piggybacks[operation].write(used, self._signal, self._stamp(operation))

    def _group(self, operation: int) -> dist.ProcessGroup:
        # The group itself, not torch.distributed: half the cost of a launch, and operations in
        # flight survive the user's destroy_process_group() at the end of a script.
        return self._groups[self._plan.operations[operation].lane]

    def _stamp(self, operation: int) -> int:
        return self._first_stamp + self._round * len(self._ranges) + operation

    def _read_piggyback(self, operation: int) -> PlanMismatch | None:
        piggyback = self._piggybacks[operation].read()
        if piggyback is None:
            name = self._names[self._ranges[operation][0][0]]
            return PlanMismatch(
                f"operation {operation} ({name}) met another operation on another rank: "
                "the stamps do not add up; it was not applied"
            )
        for (tensor, _, _), used in zip(self._ranges[operation], piggyback.used, strict=True):
            if used:  # only ever set: two threads may be here at once
                self._used_by_anybody[tensor] = True
        if piggyback.signal:
            self.signalled = piggyback.signal
        return None


class AllReduceTransport(GradientTransport):
    """One all-reduce per operation.

    Gloo joins its parts and its piggyback to one message in one of its own threads, without the
    interpreter's lock, so this costs memory only for the operations in flight.
    """

    _options = dist.AllreduceCoalescedOptions()

    def start(self, message: Message, done: Done) -> None:
        """Launch one all-reduce; ``done`` is called from one of gloo's threads."""
        (operation,) = message
        row = self._row(operation)
        self._write_piggyback(operation)
        self._launched()
        work = self._group(operation).allreduce_coalesced(row, self._options)

        def completed(future: torch.futures.Future[object]) -> None:
            try:
                future.value()
            except Exception as error:
                done(message, _told_apart(error))
            else:
                done(message, self._read_piggyback(operation))

        work.get_future().add_done_callback(completed)


def _told_apart(error: Exception) -> Exception:
    """Return a MemoryError where this rank had no memory: torch raises a RuntimeError."""
    return MemoryError(str(error)) if "can't allocate memory" in str(error) else error


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return all elements as one row of the same memory; None if there are gaps between them."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    strides = tensor.stride()
    ordered = tensor.permute(sorted(range(tensor.dim()), key=lambda d: (-strides[d], d)))
    return ordered.view(-1) if ordered.is_contiguous() else None
