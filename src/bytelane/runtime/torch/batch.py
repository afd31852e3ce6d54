"""Gradients that wait for the others of their operation.

Nothing can be sent before an operation has all its gradients, so they are handed over together:
once for an operation instead of once for a tensor, of which a model has many small ones. Nothing is
launched any later for that.
"""

from bytelane.core import Plan


class Batch:
    """What has not been handed over yet in a round: tensors, and whether backward reached them."""

    def __init__(self, plan: Plan) -> None:
        tensors = [{part.tensor for part in operation.parts} for operation in plan.operations]
        self._needed = [len(own) for own in tensors]
        self._operations: list[list[int]] = [[] for _ in plan.tensor_bytes]
        for number, own in enumerate(tensors):
            for tensor in own:
                self._operations[tensor].append(number)
        self.begin()

    def begin(self) -> None:
        """Begin a round, in which every tensor comes once."""
        self._lacking = self._needed.copy()
        self._waiting: list[tuple[int, bool]] = []

    def add(self, tensor: int, used: bool) -> bool:
        """Take one more, and tell whether some operation has all of its own now."""
        self._waiting.append((tensor, used))
        complete = False
        for operation in self._operations[tensor]:
            self._lacking[operation] -= 1
            complete = complete or not self._lacking[operation]
        return complete

    def empty(self) -> list[tuple[int, bool]]:
        """Return what is there, to be handed over."""
        waiting, self._waiting = self._waiting, []
        return waiting
