"""The session of one prepared model: connects hooks, synchroniser, planning and process groups.

Hooks on modules call :class:`~.forward_pass.ForwardPass`, hooks on optimizers
:class:`~.optimizer_steps.OptimizerSteps`, hooks of autograd :class:`~.gradients.Gradients`. All of
these call one :class:`~bytelane.runtime.sync.Synchroniser`, which does not depend on torch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from bytelane.cluster import Link
from bytelane.core import Plan, Planner, Wish
from bytelane.errors import NotSupported, TrainingError
from bytelane.job import Job
from bytelane.runtime.sync import Engine, Rounds, Synchroniser, Transport
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.access_guard import AccessGuard, memory_of
from bytelane.runtime.torch.carrier import Carrier
from bytelane.runtime.torch.deferred_step import DeferredSteps
from bytelane.runtime.torch.forward_pass import ForwardPass
from bytelane.runtime.torch.framework import TorchFramework
from bytelane.runtime.torch.gradients import Gradients
from bytelane.runtime.torch.optimizer_steps import OptimizerSteps
from bytelane.runtime.torch.parameters import TrainedParameters, describe
from bytelane.runtime.torch.planning import Planning
from bytelane.runtime.torch.profiler import Profiler
from bytelane.runtime.torch.server_carrier import ServerSettings
from bytelane.runtime.torch.status import Status
from bytelane.runtime.torch.uneven_inputs import UnevenInputs
from bytelane.runtime.torch.validation import model_problem
from bytelane.terminal import announce
from bytelane.trace.recording import Recorder

# How long others may take, at exit, to do their part of the operations in flight.
REST_S = 2.0
_FORKED = (
    "this process was forked from a rank, and has no part in its training; "
    "give it a copy of the model, made before"
)


class Say(Protocol):
    """Where the one-line messages go."""

    def __call__(self, message: str) -> None: ...


class Probe(Protocol):
    """Measures the link between the ranks of a group, all of which call it."""

    def __call__(self, group: dist.ProcessGroup) -> Link: ...


class Settings(NamedTuple):
    """How one model is trained."""

    planner: Planner
    timeout_s: float
    keep_iterations: int = 4
    verify: bool = False
    """Whether all ranks compare their weights before every step."""
    recorder: Recorder | None = None
    probe: Probe | None = None
    make_engine: Callable[..., Engine] | None = None
    """None: the carrier's own."""
    servers: ServerSettings | None = None
    """None: all-reduce."""


class Session:
    """One model and the optimizers that train it."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        settings: Settings,
        *,
        carrier: Carrier,
        say: Say,
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._settings = settings
        self.carrier = carrier
        self._control = control = carrier.control
        self._say = say
        self._has_warned = False
        parameters = TrainedParameters(model, optimizers)
        self.profiler = profiler = Profiler(settings.keep_iterations)
        self.guard = guard = AccessGuard(self._bring_up_to_date, self._missing_at)
        self.deferred = DeferredSteps(optimizers)
        self.gradients = Gradients(parameters, guard, profiler, self.deferred)
        self._framework = TorchFramework(parameters, guard, profiler)
        self._planning = Planning(
            type(model).__name__,
            settings.planner,
            profiler,
            carrier,
            probe=None if settings.probe is None else partial(carrier.measure, settings.probe),
        )
        self.sync = self._make_synchroniser()
        self.forward = ForwardPass(
            model,
            optimizers,
            sync=self.sync,
            framework=self._framework,
            guard=guard,
            profiler=profiler,
            control=control,
            start_over=self._start_over,
        )
        self.steps = OptimizerSteps(
            optimizers,
            sync=self.sync,
            gradients=self.gradients,
            deferred=self.deferred,
            guard=guard,
            profiler=profiler,
            control=control,
            complete_round=self._complete_round,
        )
        self.sync.begin_with(self._planning.first_plan(parameters, step=0))

    def _make_synchroniser(self) -> Synchroniser:
        peers, settings = self.carrier.peers, self._settings
        rounds = Rounds(
            self._carry,
            peers=peers,
            timeout_s=settings.timeout_s,
            recorder=settings.recorder,
            make_engine=settings.make_engine or self.carrier.make_engine,
        )
        return Synchroniser(self.gradients, self._framework, rounds, plans=self, peers=peers)

    def _carry(self, plan: Plan) -> Transport:
        return self.carrier.carry(plan, self.parameters)

    @property
    def parameters(self) -> TrainedParameters:
        return self.gradients.trained

    @property
    def plan(self) -> Plan:
        return self.sync.rounds.plan

    @property
    def job(self) -> Job | None:
        """The model as measured; None before that."""
        return self._planning.job

    # --- plans ---------------------------------------------------------------------------------

    def propose(self, planner: Planner) -> None:
        """Plan with this planner from the next agreed step on; only rank 0's proposal counts."""
        self._planning.propose(planner)

    def find_planner(self, name: str) -> Planner | None:
        """Return the planner of that name that was given control last, if there was one."""
        return self._planning.find(name)

    @property
    def signal(self) -> int:
        """This rank's request for the time before the next round."""
        return self._planning.wish

    def next_plan(
        self, step: int, number: int, granted: int, unused: Callable[[], set[int]]
    ) -> Plan | None:
        """Do the work that all ranks share before a round; return a new plan if one is due."""
        if self._settings.verify and number == 0:
            agreement.require_equal_weights(self._model, self._control)
        wish = Wish(granted)
        if not self._planning.is_due(step, wish):
            return None
        plan = self._planning.next_plan(self.parameters, unused(), step, wish)
        if plan is None:
            self._say("the model's own forward never ran, so the plain buckets stay")
        return plan

    def _start_over(self) -> None:
        """Agree on a model whose parameters have changed, and measure it again."""
        self.sync.flush()
        problem = model_problem(self._model, sparse_rows=self._settings.servers is not None)
        agreement.refuse_together(problem, self._control)
        agreement.require_equal("the model", describe(self._model), self._control)
        agreement.copy_from(0, [*self._model.parameters()], self._control)
        local = [
            p for t, p in enumerate(self.parameters.parameters) if self.sync.tensors.is_local(t)
        ]
        parameters = TrainedParameters(self._model, self._optimizers)
        self.gradients.trained = self._framework.trained = parameters
        plan = self._planning.first_plan(parameters, self.sync.step)
        self.sync.begin_with(plan, parameters.numbers_of(local))
        self.hook_gradients()
        self._say(f"{len(parameters)} tensors are trained from now on")

    def hook_gradients(self) -> None:
        """Hook every trained parameter where autograd adds up its gradient."""
        self.gradients.hook(self.sync, lambda: self.forward.is_synchronising)

    # --- settling ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Bring all tensors up to date."""
        self.sync.flush()

    def settle_owed(self) -> None:
        """Make every update that is owed."""
        self.sync.settle_owed()

    def after_step(self) -> None:
        """Run after ``step()``, although updates may be owed."""
        self._framework.forward_ran = False
        if self.steps.after_step(self.settle_owed):
            self._planning.review(self.sync.step)

    def _complete_round(self) -> None:
        """Let the tensors take part that no backward pass has reached."""
        if self._framework.forward_ran and self.forward.is_synchronising:
            self._warn_of_gradients_set_by_hand()
            self.sync.open_round()  # no backward pass has reached anything, at least here
        self.sync.complete()

    def _bring_up_to_date(self, tensors: set[int]) -> None:
        """Settle these before they are used; some may not have taken part yet."""
        if not self.sync.tensors.missing.isdisjoint(tensors):
            self._complete_round()
        self.sync.settle(tensors)

    def _missing_at(self, places: set[int]) -> set[int]:
        """Return tensors that the last backward pass here has not reached, but others' may have.

        Read between two passes, their gradient is the mean of the other ranks', as in DDP.
        """
        self.sync.hand_over()  # so that the guard watches all tensors that have taken part
        if self.forward.is_running or self._framework.in_backward():
            return set()
        missing = self.sync.tensors.missing if self.sync.rounds.is_open else set[int]()
        self.guard.incomplete = bool(missing)
        parameters = self.parameters.parameters
        return {t for t in missing if not places.isdisjoint(_memory_of(parameters[t]))}

    def _warn_of_gradients_set_by_hand(self) -> None:
        named = zip(self.parameters.names, self.parameters.parameters, strict=True)
        by_hand = [
            name
            for tensor, (name, parameter) in enumerate(named)
            if parameter.grad is not None and not self.sync.tensors.is_local(tensor)
        ]
        if by_hand and not self._has_warned:
            self._has_warned = True
            self._say(
                f"no backward pass has made the gradient of {by_hand[0]} (and {len(by_hand) - 1} "
                "more) since the last step(), so it is not averaged over the ranks, nor would it "
                "be by DDP"
            )

    # --- calls of the user ---------------------------------------------------------------------

    def begin_join(self) -> None:
        """From now on announce before every training forward that this rank still has data."""
        self.forward.uneven = UnevenInputs(self._control)

    def status(self) -> Status:
        """Return the state of training, as numbers."""
        return Status(
            rank=self._control.rank,
            workers=self._control.size,
            step=self.sync.step,
            tensors=len(self.parameters),
            gradient_bytes=sum(self.parameters.tensor_bytes),
            policy=self.plan.policy,
            plan_version=self.plan.version,
            operations=len(self.plan.operations),
            waits_for_all=self.plan.barrier,
            iteration_s=self.profiler.iteration_s(),
            compute_s=None if self.job is None else self.job.compute_s,
            link_busy_s=self.profiler.link_busy_s(),
            owed_tensors=len(self.sync.tensors.owed),
            failure=str(self.sync.rounds.failure or ""),
        )

    # --- the end -------------------------------------------------------------------------------

    def say_farewell(self) -> None:
        """Print the planner's summary, on rank 0."""
        if self._control.rank == 0 and (text := self._planning.summarise(self.sync.step)):
            announce(text)

    def come_to_rest(self) -> None:
        """Wait, at exit, until no operation is in flight any more."""
        rounds = self.sync.rounds
        if not rounds.drain(0.0 if rounds.failure else REST_S):
            self.carrier.break_all()
            rounds.drain(REST_S)

    def disown(self) -> None:
        """Refuse to synchronise, in a forked child: the model is a plain one, or raises."""
        self.sync.rounds.disown(NotSupported(_FORKED))
        self._control.disown(NotSupported(_FORKED))

    def end(self, error: TrainingError) -> None:
        """End all waits, since another rank is lost. Called from any thread."""
        self.sync.rounds.fail(error)
        self.carrier.break_all()


def _memory_of(parameter: torch.Tensor) -> set[int]:
    both = parameter, parameter.grad
    return {memory_of(one) for one in both if one is not None and not one.is_sparse}
