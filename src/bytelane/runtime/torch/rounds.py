"""Rounds: in each, every trained tensor is summed over the ranks once.

Usually a round is a backward pass. A second backward pass before ``step()`` is a second round, and
what no backward pass has reached takes part too, or the other ranks would wait for it.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from bytelane.core import Plan, Wish
from bytelane.errors import NotSupported
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.batch import Batch
from bytelane.runtime.torch.control import Control
from bytelane.runtime.torch.onlooker import Onlooker
from bytelane.runtime.torch.planning import Planning
from bytelane.runtime.torch.stopwatch import Stopwatch
from bytelane.runtime.torch.surroundings import plainly
from bytelane.runtime.torch.synchroniser import Synchroniser
from bytelane.runtime.torch.trained import Trained
from bytelane.runtime.torch.transport import Gradient, in_memory_order


class Flight(NamedTuple):
    """A gradient that is being summed in place."""

    gradient: torch.Tensor
    """``p.grad`` itself, or a stand-in if no backward pass here has reached the parameter."""
    before: torch.Tensor | None
    """What ``p.grad`` was."""

    @property
    def is_stand_in(self) -> bool:
        return self.gradient is not self.before


class Rounds:
    """One rank's gradients in flight, and the plans under which they fly."""

    def __init__(
        self,
        model: torch.nn.Module,
        trained: Trained,
        *,
        sync: Synchroniser,
        planning: Planning,
        control: Control,
        onlooker: Onlooker,
        watch: Stopwatch,
        say: Callable[[str], None],
        verify: bool,
    ) -> None:
        self.step = 0
        """How often the optimizers have stepped."""
        self.number = 0
        """How many rounds there were since."""
        self._model = model
        self._sync = sync
        self._planning = planning
        self._control = control
        self._onlooker = onlooker
        self._watch = watch
        self._say = say
        self._verify = verify
        self._flights: dict[int, Flight] = {}
        self._took: set[int] = set()  # in the round that is under way
        self._added_here: set[int] = set()  # reached by backward passes that were not summed
        self._opened_in = 0
        self._use(trained)

    def begin_with(self, trained: Trained) -> None:
        """Sum these tensors from now on; nothing may be in flight."""
        reached = [self.trained.parameters[t] for t in self._added_here]
        self._added_here = trained.numbers_of(reached)
        self._use(trained)

    def _use(self, trained: Trained) -> None:
        self.trained = trained
        self._install(self._planning.first_plan(trained, self.step))

    def _install(self, plan: Plan) -> None:
        self._sync.install(plan, self.trained)
        self._batch = Batch(plan)

    @property
    def plan(self) -> Plan:
        return self._sync.plan

    @property
    def is_open(self) -> bool:
        """Tell whether a round has begun whose tensors have not all been settled."""
        return self._sync.is_open

    # --- opening and closing -------------------------------------------------------------------

    def ensure(self) -> None:
        """Begin a round if none is under way; everything that is owed must have been settled."""
        if self._sync.is_open:
            return
        if self._verify and self.number == 0:
            agreement.require_equal_weights(self._model, self._control)
        granted = Wish(self._sync.signalled)
        if self._planning.is_due(self.step, granted):
            self._change_plan(granted)
        self._took.clear()
        self._batch.begin()
        self._sync.open(self.step, self.number, signal=self._planning.wish)
        self.number += 1
        self._opened_in = self._watch.iteration

    def complete(self) -> set[int]:
        """Let everything take part that no backward pass has reached, and return that."""
        missing = set(self.missing())
        with self._onlooker.looking_away(), plainly():
            for tensor in sorted(missing):
                self.take(tensor, used=tensor in self._added_here)
        return missing

    def close_if_over(self) -> None:
        """End the round if everything has taken part, and has been given back."""
        if self._sync.is_open and not self._flights and not self._sync.missing():
            self._sync.close()
            self._took.clear()
            self._watch.add_transfers(
                self._sync.transfers,
                self.plan,
                self.trained.names,
                self.trained.owners,
                self._opened_in,
            )

    def shadow(self, step: int, number: int) -> None:
        """Take part in a round of the others without adding anything to it."""
        self.go_on_from(step, number)
        self.ensure()
        nothing = (torch.zeros_like(parameter) for parameter in self.trained.parameters)
        self._sync.take([Gradient(t, zeros, used=False) for t, zeros in enumerate(nothing)])
        self._sync.wait(range(len(self.trained)))
        self._sync.close()

    def go_on_from(self, step: int, number: int) -> None:
        """Count from where another rank is, whose last rounds were shadowed here."""
        self.step, self.number = step, number

    def count_step(self) -> bool:
        """An optimizer has stepped; tell whether that ends an iteration."""
        if not self.number:
            return False
        self.number = 0
        self.step += 1
        return True

    def _change_plan(self, granted: Wish) -> None:
        unused = {t for t in range(len(self.trained)) if not self._sync.was_used(t)}
        plan = self._planning.next_plan(self.trained, unused, self.step, granted)
        if plan is None:
            self._say("the model's own forward never ran, so the plain buckets stay")
        else:
            self._install(plan)

    # --- gradients -----------------------------------------------------------------------------

    def missing(self) -> list[int]:
        """Return what has not taken part yet in the round that is under way, if one is."""
        self.hand_over()
        return self._sync.missing() if self._sync.is_open else []

    def lacks(self, tensor: int) -> bool:
        """Tell whether a round is under way in which a tensor has not taken part yet."""
        return self._sync.is_open and tensor not in self._took

    def has_taken(self, tensor: int) -> bool:
        """Tell whether a tensor has taken part in the round that is under way."""
        return tensor in self._took

    def arrived(self, tensors: Iterable[int]) -> list[int]:
        """Return those among these tensors that have arrived, without waiting."""
        return self._sync.arrived(tensors)

    def add_here(self, tensor: int) -> None:
        """Take note that a backward pass has added to a gradient that is not to be summed yet."""
        self._added_here.add(tensor)

    def was_added_here(self, tensor: int) -> bool:
        """Tell whether a backward pass has added to a gradient that is not to be summed yet."""
        return tensor in self._added_here

    def throw_away(self, tensors: set[int]) -> None:
        """These gradients have been zeroed."""
        self._added_here -= tensors

    def take(self, tensor: int, *, used: bool = True) -> None:
        """Let ``p.grad`` take part; a stand-in does if no backward pass here has reached it."""
        self._took.add(tensor)
        if self._batch.add(tensor, used):
            self.hand_over()

    def hand_over(self) -> None:
        """Let take part what has waited for the other gradients of its operation."""
        if batch := self._batch.empty():
            with plainly():
                self._sync.take([self._begin_flight(tensor, used) for tensor, used in batch])

    def _begin_flight(self, tensor: int, used: bool) -> Gradient:
        parameter = self.trained.parameters[tensor]
        gradient = self._usable_gradient(tensor) if used else _stand_in(parameter)
        self._added_here.discard(tensor)
        self._flights[tensor] = Flight(gradient, gradient if used else parameter.grad)
        self._onlooker.watch(tensor, (parameter, gradient))
        return Gradient(tensor, gradient, used)

    def wait(self, tensors: list[int]) -> set[int]:
        """Return when these have arrived, and what had to take part for that."""
        joined = set[int]()
        self.hand_over()
        if missing := self._sync.missing_before(tensors):
            if torch._C._current_graph_task_id() != -1:
                raise NotSupported(
                    f"{self.trained.names[tensors[0]]} was looked at within a backward pass, and "
                    f"cannot be synchronised before {self.trained.names[missing[0]]} has its "
                    "gradient; look at it after backward()"
                )
            joined = self.complete()
        self._sync.wait(tensors)
        return joined

    def give(self, tensor: int) -> None:
        """Let ``p.grad`` be the mean over the ranks; what no rank has used stays what it was."""
        flight, parameter = self._flights.pop(tensor), self.trained.parameters[tensor]
        with _undisturbed():
            self._sync.forget(tensor)
            self._onlooker.forget(tensor)
            parameter.grad = flight.before
            if flight.is_stand_in and self._sync.was_used(tensor):
                if flight.before is None:
                    parameter.grad = flight.gradient
                else:
                    flight.before.copy_(flight.gradient)

    def _usable_gradient(self, tensor: int) -> torch.Tensor:
        parameter, name = self.trained.parameters[tensor], self.trained.names[tensor]
        gradient = parameter.grad
        if gradient is None:
            raise NotSupported(f"a hook has taken the gradient of {name} away before it was sent")
        if gradient.layout is not torch.strided:
            raise NotSupported(f"the gradient of {name} is sparse, which is not supported")
        if gradient.dtype != self.trained.dtypes[tensor]:
            raise NotSupported(
                f"{name} has become {gradient.dtype} since prepare(); change dtypes before it"
            )
        has_gaps = not gradient.is_contiguous() and in_memory_order(gradient) is None
        if gradient.requires_grad or has_gaps:
            parameter.grad = gradient = gradient.detach().clone(memory_format=torch.preserve_format)
        return gradient


# Nobody has to be told of what we do ourselves; every look at a tensor would cost microseconds.
_undisturbed = torch._C.DisableTorchFunction


def _stand_in(parameter: torch.Tensor) -> torch.Tensor:
    """Return what a rank adds that has not used a parameter, while others may have."""
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.detach().clone()
