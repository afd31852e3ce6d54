"""The operations of an engine: their parts, and which gradients must be ready before each."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from bytelane.core import Plan, Policy, SubTask, label
from bytelane.job import Job


class Operations:
    """A table of operations: those of a recorded plan, or of a policy that decides online."""

    def __init__(
        self,
        parts: Sequence[Sequence[SubTask]],
        names: Sequence[str],
        tensor_bytes: Sequence[int],
        *,
        stages: int = 1,
        in_order: bool,
        after_all: bool,
    ) -> None:
        self._parts = parts
        self.names = names
        self._tensor_bytes = tensor_bytes
        self._stages = stages
        self._in_order = in_order
        self._after_all = after_all
        self._first = [len(parts)] * len(tensor_bytes)
        self._last = [-1] * len(tensor_bytes)
        self._of_tensor: list[list[int]] = [[] for _ in tensor_bytes]
        for number, own in enumerate(parts):
            for part in own:
                self._first[part.tensor] = min(self._first[part.tensor], number)
                self._last[part.tensor] = number
                if number not in self._of_tensor[part.tensor][-1:]:
                    self._of_tensor[part.tensor].append(number)

    @classmethod
    def of_plan(cls, plan: Plan, names: Sequence[str]) -> "Operations":
        """The operations of a plan are launched in its order on every rank."""
        parts = [operation.parts for operation in plan.operations]
        return cls(
            parts,
            names,
            plan.tensor_bytes,
            stages=len(plan.stages),
            in_order=True,
            after_all=any(stage.after_all for stage in plan.stages),
        )

    @classmethod
    def of_policy(cls, policy: Policy, job: Job) -> "Operations":
        """The operations of a policy are launched in the order that it decides on each rank."""
        return cls(
            policy.cut(job).sub_tasks(),
            [tensor.name for tensor in job.tensors],
            [tensor.bytes for tensor in job.tensors],
            stages=len(policy.stages),
            in_order=False,
            after_all=any(stage.after_all for stage in policy.stages),
        )

    def __len__(self) -> int:
        return len(self._parts)

    def describe(self, operation: int) -> str:
        """Return a readable name of an operation; each stage numbers all operations again."""
        return label(self._parts[operation % len(self._parts)], self.names, self._tensor_bytes)

    def in_all_stages(self, tensor: int) -> list[int]:
        """Return the numbers of the operations that carry parts of a tensor, stage by stage."""
        every = range(0, self._stages * len(self._parts), len(self._parts))
        return [first + number for first in every for number in self._of_tensor[tensor]]

    def missing_before(self, tensors: Iterable[int], missing: AbstractSet[int]) -> list[int]:
        """Return which of the missing gradients must come before these tensors can arrive.

        Operations of a plan are launched in its order, so the gradients of all operations up to a
        tensor's last one; all gradients, if a stage begins when all have passed the one before.
        """
        if not missing:
            return []
        if self._after_all:
            return sorted(missing)
        if self._in_order:
            last = max((self._last[tensor] for tensor in tensors), default=-1)
            return sorted(tensor for tensor in missing if self._first[tensor] <= last)
        together = {
            part.tensor
            for tensor in tensors
            for operation in self._of_tensor[tensor]
            for part in self._parts[operation]
        }
        return sorted(together & missing)
