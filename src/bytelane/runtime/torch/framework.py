"""Torch as the synchroniser's framework: call context, autograd, access guard, profiler, waits."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from bytelane.core import Plan
from bytelane.foreign.torch import in_backward
from bytelane.runtime.sync import Transfer
from bytelane.runtime.sync.protocols import Waits
from bytelane.runtime.torch.access_guard import AccessGuard
from bytelane.runtime.torch.call_context import plainly
from bytelane.runtime.torch.parameters import TrainedParameters
from bytelane.runtime.torch.profiler import Profiler

OUTSIDE = "the loop"


class TorchFramework:
    """Torch on CPUs: the training thread itself waits."""

    def __init__(
        self, parameters: TrainedParameters, guard: AccessGuard, profiler: Profiler
    ) -> None:
        self.trained = parameters
        self.forward_ran = False
        """Whether a training forward has run that no round has followed."""
        self._guard = guard
        self._profiler = profiler
        self._opened_in = 0

    def plainly(self) -> AbstractContextManager[None]:
        return plainly()

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        with self._guard.looking_away(), plainly():
            yield

    @contextmanager
    def interrupting_backward(self) -> Iterator[None]:
        self._profiler.stop()
        with self.undisturbed():
            yield
        self._profiler.start("backward", OUTSIDE)

    def in_backward(self) -> bool:
        return in_backward()

    def wait(self, engine: Waits, tensors: Sequence[int]) -> None:
        engine.wait(tensors)

    def catch_up(self, engine: Waits) -> None:
        pass  # the host has waited for all tensors, so all operations are over

    def round_opened(self) -> None:
        self._guard.incomplete = True
        self.forward_ran = False
        self._opened_in = self._profiler.iteration

    def round_completed(self) -> None:
        self._guard.incomplete = False

    def round_closed(self, plan: Plan, transfers: Sequence[Transfer]) -> None:
        names, owners = self.trained.names, self.trained.owners
        self._profiler.add_transfers(transfers, plan, names, owners, self._opened_in)
