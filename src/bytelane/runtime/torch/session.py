"""One prepared model: what is behind, and how it is brought up to date.

Every trained tensor is in one of three states::

    CLEAN ──(its gradient is complete)──▶ TAKEN ──(step() was called)──▶ OWED
      ▲                                     │                             │
      └──(settled: p.grad is the mean)──────┘                             │
      └──(settled: the update has been made)──────────────────────────────┘

*Settling* waits for the tensor and finishes what it is owed. Gates settle what a module needs,
the onlooker settles what anybody else looks at, and whoever wants everything calls ``flush``.
Updates are made only in the training thread, so nothing changes under the user's feet.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from bytelane.cluster import Link
from bytelane.core import Plan, Planner, Review
from bytelane.errors import NotSupported, TrainingError
from bytelane.job import Job
from bytelane.runtime.engine import Engine
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.control import Control
from bytelane.runtime.torch.gradient_hooks import GradientHook
from bytelane.runtime.torch.groups import Groups
from bytelane.runtime.torch.joining import Joining
from bytelane.runtime.torch.onlooker import Onlooker, memory_of
from bytelane.runtime.torch.peers import Peers
from bytelane.runtime.torch.planning import Planning
from bytelane.runtime.torch.rounds import Rounds
from bytelane.runtime.torch.status import Status
from bytelane.runtime.torch.stepping import PartialStepper
from bytelane.runtime.torch.stopwatch import Stopwatch
from bytelane.runtime.torch.support import is_separable, model_problem
from bytelane.runtime.torch.surroundings import is_observed, plainly
from bytelane.runtime.torch.synchroniser import Synchroniser
from bytelane.runtime.torch.trained import Trained, describe, parameters_of
from bytelane.runtime.torch.transport import GradientTransport
from bytelane.trace.recording import Recorder

OUTSIDE = "the loop"
# DDP's name for it: scripts that accumulate gradients switch this attribute of their model.
SYNC_FLAG = "require_backward_grad_sync"
# How long others may take, at exit, to do their part of what is in flight.
REST_S = 2.0
# From an operation's end being told to the last line of that.
LAST_LINES_S = 0.05
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


class Session:
    """The state of one model and the optimizers that train it."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        planner: Planner,
        *,
        groups: Groups,
        control: Control,
        peers: Peers,
        timeout_s: float,
        keep_iterations: int,
        say: Say,
        verify: bool = False,
        recorder: Recorder | None = None,
        probe: Probe | None = None,
        review: Review | None = None,
        make_engine: Callable[..., Engine] = Engine,
    ) -> None:
        self.watch = Stopwatch(keep_iterations)
        self.joining: Joining | None = None
        """Within ``join``: who still has data."""
        self.farewell: Callable[[Status], None] | None = None
        """What rank 0 has to say when the script ends."""
        self.steppers = [PartialStepper(optimizer) for optimizer in optimizers]
        self._model = model
        self._optimizers = optimizers
        self._control = control
        self._say = say
        self._peers = peers
        self._groups = groups
        self._owed: dict[int, int] = {}  # tensor -> which optimizer owes it an update
        self._taken: set[int] = set()  # the hooks of gradients hold it too: the same one for ever
        self._zeroed: dict[int, bool] = {}
        self._is_in_forward = False
        self._forward_ran = False
        self._buffers_are_due = True
        self._updated = 0  # tensors, since the round began
        self._half_updated = 0  # tensors whose update has raised
        self._has_warned = False
        self._gradient_hooks: list[GradientHook] = []
        self.onlooker = Onlooker(self._bring_up_to_date, self._missing_at)
        self._sync = Synchroniser(
            groups, peers=peers, timeout_s=timeout_s, recorder=recorder, make_engine=make_engine
        )
        self._planning = Planning(
            type(model).__name__,
            planner,
            self.watch,
            control,
            probe=None if probe is None else partial(groups.measure, probe),
            review=review,
        )
        self._rounds = Rounds(
            model,
            Trained(model, optimizers),
            sync=self._sync,
            planning=self._planning,
            control=control,
            onlooker=self.onlooker,
            watch=self.watch,
            say=say,
            verify=verify,
        )

    @property
    def synchronising(self) -> bool:
        """False within ``no_sync``: gradients only add up here. Kept on the model itself."""
        return bool(getattr(self._model, SYNC_FLAG, True))

    @synchronising.setter
    def synchronising(self, wanted: bool) -> None:
        setattr(self._model, SYNC_FLAG, wanted)

    @property
    def trained(self) -> Trained:
        return self._rounds.trained

    @property
    def plan(self) -> Plan:
        return self._rounds.plan

    @property
    def transport(self) -> GradientTransport:
        return self._sync.transport

    @property
    def job(self) -> Job | None:
        """The model as measured; None before that."""
        return self._planning.job

    def status(self) -> Status:
        """Say how training is going."""
        return Status(
            rank=self._control.rank,
            workers=self._control.size,
            step=self._rounds.step,
            tensors=len(self.trained),
            gradient_bytes=sum(self.trained.tensor_bytes),
            policy=self.plan.policy,
            plan_version=self.plan.version,
            operations=len(self.plan.operations),
            waits_for_all=self.plan.barrier,
            iteration_s=self.watch.iteration_s(),
            compute_s=None if self.job is None else self.job.compute_s,
            link_busy_s=self.watch.link_busy_s(),
            owed_tensors=len(self._owed),
            failure=str(self._sync.failure or ""),
        )

    def say_farewell(self) -> None:
        """Tell, on rank 0, how it went."""
        if self.farewell is not None and self._control.rank == 0:
            self.farewell(self.status())

    # --- forward -------------------------------------------------------------------------------

    def enter_model(self) -> None:
        """The root module's forward begins."""
        self.onlooker.resume()  # a step() that raised has left it paused
        self._is_in_forward = True
        is_traced = is_observed()
        if self._owed and is_traced:
            # What traces or transforms this forward must see one set of weights from its beginning.
            self.settle_owed()
        if not torch.is_grad_enabled():
            return
        with self._telling_all(), plainly():
            if self.trained.has_changed(self._optimizers, is_traced=is_traced):
                self._start_over()
            if self.joining is not None and self.synchronising:
                self.joining.announce(self._rounds.step, self._rounds.number, self._buffers_are_due)
            if self._buffers_are_due:
                self.copy_buffers()
        # As in DDP: not after a forward pass within no_sync.
        self._buffers_are_due = self._forward_ran = self.synchronising
        self.watch.start("outside", OUTSIDE)

    def pass_gate(self, module: str) -> None:
        """A module is about to use its own parameters."""
        if self._owed and (needed := self._owed.keys() & self.trained.used_by[module]):
            self.watch.stop()
            self.settle(needed)
        if torch.is_grad_enabled():
            self.watch.start("forward", module)
        else:
            self.watch.stop()

    def leave_model(self) -> None:
        """The root module's forward is over; a module that was left out is settled now."""
        self._is_in_forward = False
        self.watch.stop()
        if self._sync.failure is None:  # a gate that raised it has ended this forward
            self.settle_owed()
        if torch.is_grad_enabled():
            self.watch.start("backward", OUTSIDE)

    def copy_buffers(self) -> None:
        """Take one rank's buffers before a training forward, as DDP does."""
        buffers = list(self._model.buffers())
        if buffers:
            source = 0 if self.joining is None else self.joining.authority
            with self.onlooker.looking_away(), plainly():
                agreement.copy_from(source, buffers, self._control)

    def _start_over(self) -> None:
        """Agree on what was frozen, unfrozen, cast, replaced or added, and measure again."""
        self.flush()
        agreement.refuse_together(model_problem(self._model), self._control)
        agreement.require_equal("the model", describe(self._model), self._control)
        agreement.copy_from(0, [*self._model.parameters()], self._control)
        self._rounds.begin_with(Trained(self._model, self._optimizers))
        self.hook_gradients()
        self._say(f"{len(self.trained)} tensors are trained from now on")

    # --- backward ------------------------------------------------------------------------------

    def hook_gradients(self) -> None:
        """Hook every trained parameter where autograd adds up its gradient."""
        for hook in self._gradient_hooks:
            hook.remove()
        self._gradient_hooks = [
            GradientHook(parameter, number, self._taken, self)
            for number, parameter in enumerate(self.trained.parameters)
        ]

    def take_gradient(self, tensor: int) -> None:
        """A gradient is complete: hand it over."""
        # What follows hardly ever waits; it comes before the next gradient, as computing does.
        self.watch.lap("backward", self.trained.owners[tensor][0])
        if not self.synchronising:
            self._rounds.add_here(tensor)
            return
        if self._owed or not self._rounds.lacks(tensor):
            self._make_way_for(tensor)
        self._taken.add(tensor)
        try:  # and no context manager: this is done for every gradient
            self._rounds.take(tensor)
        except TrainingError as error:
            self._tell_all(error)
            raise

    def _make_way_for(self, tensor: int) -> None:
        """Finish what must be over before this gradient can take part."""
        self.watch.stop()
        with self.onlooker.looking_away(), plainly():
            if self._owed:
                self._require_up_to_date(tensor)
                self.settle_owed()  # by modules that this forward pass has left out
            if self._rounds.has_taken(tensor):
                self.land()
            self._open_round()
        self.watch.start("backward", OUTSIDE)

    def _require_up_to_date(self, tensor: int) -> None:
        if tensor in self._owed:
            raise TrainingError(
                f"{self.trained.names[tensor]} was used before its last update had arrived, by "
                "something that neither a module's forward nor a torch function shows"
            )

    def _open_round(self) -> None:
        """Begin a round unless one is under way."""
        if not self._rounds.is_open:
            self.settle_owed()  # by modules that this forward pass has left out
            with self._telling_all(), plainly():
                self._rounds.ensure()
            self.onlooker.incomplete = True
            self._updated = 0
            self._forward_ran = False

    def _complete_round(self) -> None:
        """Let everything take part that no backward pass has reached."""
        if self._forward_ran and self.synchronising:
            self._warn_of_gradients_set_by_hand()
            self._open_round()  # no backward pass has reached anything, at least here
        self._taken |= self._rounds.complete()
        self.onlooker.incomplete = False

    def _warn_of_gradients_set_by_hand(self) -> None:
        by_hand = [
            name
            for tensor, (name, parameter) in enumerate(
                zip(self.trained.names, self.trained.parameters, strict=True)
            )
            if parameter.grad is not None and not self._rounds.was_added_here(tensor)
        ]
        if by_hand and not self._has_warned:
            self._has_warned = True
            self._say(
                f"no backward pass has made the gradient of {by_hand[0]} (and {len(by_hand) - 1} "
                "more) since the last step(), so it is not averaged over the ranks, nor would it "
                "be by DDP"
            )

    def land(self) -> None:
        """Finish the round that is under way."""
        self._taken |= self._rounds.complete()
        self.settle(list(self._taken))

    # --- uneven inputs -------------------------------------------------------------------------

    def begin_join(self) -> None:
        """From now on say before every training forward that this rank still has data."""
        self.joining = Joining(self._control)

    def shadow_the_others(self) -> None:
        """Take part in the others' rounds until nobody has data; then take the last weights."""
        assert self.joining is not None
        self.land()
        self.settle_owed()
        with self.onlooker.looking_away(), plainly():
            while (ahead := self.joining.hear()) is not None:
                step, number, buffers_are_due = ahead
                if buffers_are_due:
                    self.copy_buffers()
                self._rounds.shadow(step, number)
            everything = [*self._model.parameters(), *self._model.buffers()]
            where = torch.tensor([self._rounds.step, self._rounds.number])
            agreement.copy_from(self.joining.authority, [*everything, where], self._control)
            self._rounds.go_on_from(*where.tolist())

    # --- the optimizers ------------------------------------------------------------------------

    def before_step(self, which: int) -> None:
        """The user calls ``step()``: what has arrived is stepped now, the rest is owed."""
        self.watch.stop("outside", OUTSIDE)
        self.onlooker.resume()  # a step() that raised has left it paused
        self._require_watch()
        with self.onlooker.looking_away():
            own = self.trained.numbers_of(parameters_of(self._optimizers[which]))
            # A second step() with the same gradients, and what has been thrown away since; and what
            # this optimizer owes, although the user may have taken it out of its groups.
            owed = {tensor for tensor, owing in self._owed.items() if owing == which}
            self.settle(owed | own & (self._owed.keys() | self._zeroed.keys()))
            self._complete_round()
            if self.plan.barrier or self._must_wait(which):
                self.settle(own & self._taken)
            else:
                self._defer(which, own & self._taken)
        self.onlooker.pause()
        self.watch.start("update", OUTSIDE)

    def synchronised(self, closure: Callable[[], Any], which: int) -> Callable[[], Any]:
        """Wrap a closure so that the optimizer that calls it finds everything up to date."""

        def call() -> Any:
            self.onlooker.resume()
            loss = closure()
            self._complete_round()
            self.flush()
            self.onlooker.pause()
            if is_separable(self._optimizers[which]) or loss is None:
                return loss
            # What couples parameters may decide by the loss, and all ranks must decide alike.
            return agreement.mean(loss, self._control)

        self.flush()
        return call

    def after_step(self) -> None:
        """``step()`` is over, although updates may be owed."""
        self.onlooker.resume()
        self.watch.stop()
        self._forward_ran = False
        for which in set(self._owed.values()):
            self.steppers[which].guard_state(self.settle_owed)
        if self._rounds.count_step():
            self.watch.begin_iteration()
            self._planning.review(self._rounds.step)
        self.watch.start("outside", OUTSIDE)

    def before_zero_grad(self, parameters: Iterable[torch.Tensor], set_to_none: bool) -> None:
        """These gradients are thrown away; those still owed are kept, for the update only."""
        tensors = self.trained.numbers_of(parameters)
        self._rounds.throw_away(tensors)
        if tensors & self._taken:  # a backward pass that was not followed by a step() of theirs
            self._taken |= self._rounds.complete()
        with self.onlooker.looking_away():
            for tensor in tensors & (self._taken | self._owed.keys()):
                self.trained.parameters[tensor].grad = None  # what is in flight must stay as it is
                self._zeroed[tensor] = set_to_none

    def _require_watch(self) -> None:
        """Nothing that tells us of looks may have been lost."""
        if not Onlooker.is_watching():
            raise NotSupported(
                "prepare() was called in another thread than this one, or somebody has taken the "
                "watch on parameters away; call prepare() in the thread that trains"
            )

    def _must_wait(self, which: int) -> bool:
        optimizer = self._optimizers[which]
        # Late steps would run the user's hooks several times; ours is one of each.
        own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        everybodys = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
        hooked = any(len(hooks) > 1 for hooks in own) or any(everybodys)
        return hooked or not is_separable(optimizer) or is_observed()

    def _defer(self, which: int, tensors: set[int]) -> None:
        self.steppers[which].remember()
        arrived = self._arrived(tensors)
        self.settle(arrived)
        self._updated += len(arrived)  # by the user's own step(), which follows
        for tensor in tensors & self._taken:
            parameter = self.trained.parameters[tensor]
            parameter.grad = None
            self._taken.discard(tensor)
            self._owed[tensor] = which
            self.onlooker.watch_too(tensor, self.steppers[which].state_of(parameter))

    # --- settling ------------------------------------------------------------------------------

    def propose(self, planner: Planner) -> None:
        """Plan with this from the next agreed step on; what rank 0 proposes is done."""
        self._planning.propose(planner)

    def flush(self) -> None:
        """Bring everything up to date."""
        self.settle([*self._taken, *self._owed])

    def _bring_up_to_date(self, tensors: set[int]) -> None:
        """Somebody looks at these, some of which may not have taken part yet."""
        if not tensors <= self._taken | self._owed.keys():
            self._complete_round()
        self.settle(tensors)

    def _missing_at(self, places: set[int]) -> set[int]:
        """Return what the last backward pass has not reached, but those of others may have.

        Its gradient is the mean of theirs, as in DDP, for whoever looks between two passes.
        """
        self._rounds.hand_over()  # so that all are watched that have taken part
        if self._is_in_forward or torch._C._current_graph_task_id() != -1:
            return set()
        missing = self._rounds.missing()
        self.onlooker.incomplete = bool(missing)
        return {t for t in missing if not places.isdisjoint(self._memory_of(t))}

    def _memory_of(self, tensor: int) -> set[int]:
        parameter = self.trained.parameters[tensor]
        both = parameter, parameter.grad
        return {memory_of(one) for one in both if one is not None}

    def settle_owed(self) -> None:
        """Make every update that is owed."""
        self.settle(list(self._owed))

    def settle(self, tensors: Iterable[int]) -> None:
        """Wait for these tensors, and finish what they are owed."""
        taken = [t for t in tensors if t in self._taken]
        owed = [t for t in tensors if t in self._owed]
        if not taken and not owed:
            return
        with self.onlooker.looking_away(), plainly():
            late = len(self._arrived(owed)) < len(owed)
            self._wait([*taken, *owed])
            for tensor in taken:
                self._rounds.give(tensor)
                self._forget_gradient(tensor)
                self._taken.discard(tensor)
            if owed:
                # One step for many is cheaper than many, so take along what else has arrived; but
                # not if the forward pass has been held up: then it goes on as soon as it can.
                self._update(owed if late else self._arrived(self._owed))
            self._rounds.close_if_over()

    def _arrived(self, tensors: Iterable[int]) -> list[int]:
        with self._telling_all():
            return self._rounds.arrived(tensors)

    def _wait(self, tensors: list[int]) -> None:
        with self._telling_all():
            self._taken |= self._rounds.wait(tensors)

    @contextmanager
    def _telling_all(self) -> Iterator[None]:
        """Tell the other ranks what goes wrong within, and the user where the weights are."""
        try:
            yield
        except TrainingError as error:
            self._tell_all(error)
            raise

    def _tell_all(self, error: TrainingError) -> None:
        self._peers.report_failure(str(error))
        if not hasattr(error, "__notes__"):  # it may be met again at exit
            error.add_note(self._where_the_weights_are())

    def _where_the_weights_are(self) -> str:
        if self._owed and (self._updated or self._half_updated):
            return (
                f"The weights are in the middle of step {self._rounds.step}: {self._updated} "
                f"tensors have their update, {len(self._owed) - self._half_updated} have not"
                + (f", {self._half_updated} may have a part of it" if self._half_updated else "")
                + ". Go back to a checkpoint."
            )
        complete = self._rounds.step - 1 if self._owed else self._rounds.step
        return f"The weights are those after step {complete}."

    def come_to_rest(self) -> None:
        """See to it, at exit, that nothing is in flight any more.

        The end of an operation is told in a thread of gloo's. One that needs the interpreter when
        that is gone is thrown out of the middle of C++, and the process is aborted.
        """
        if not self._sync.drain(0.0 if self._sync.failure else REST_S):
            self._groups.break_all()
            self._sync.drain(REST_S)
            time.sleep(LAST_LINES_S)

    def disown(self) -> None:
        """Have no part in training any more, in a forked child: a plain model, or an error."""
        self._sync.disown(NotSupported(_FORKED))
        self._control.disown(NotSupported(_FORKED))
        self.farewell = None

    def end(self, error: TrainingError) -> None:
        """Another rank is lost: nobody shall wait for it. Called from any thread."""
        self._sync.fail(error)
        self._groups.break_all()

    def _update(self, tensors: list[int]) -> None:
        self.watch.start("update", self.trained.owners[tensors[0]][0])
        for tensor in tensors:
            self._rounds.give(tensor)
        try:
            for which, stepper in enumerate(self.steppers):
                own = [t for t in tensors if self._owed[t] == which]
                if own:
                    stepper.step(self.trained.parameters[t] for t in own)
        except BaseException as error:
            self._refuse_half_updated(tensors, error)
            raise
        for tensor in tensors:
            self._forget_gradient(tensor)
            del self._owed[tensor]
            self._updated += 1
        for which, stepper in enumerate(self.steppers):
            if which not in self._owed.values():
                stepper.release_state()
        self.watch.stop()

    def _refuse_half_updated(self, tensors: list[int], error: BaseException) -> None:
        """Refuse everything from now on: an optimizer may have updated some of these tensors."""
        self._half_updated = len(tensors)
        others = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        failure = TrainingError(
            f"the update of {self.trained.names[tensors[0]]}{others} failed: "
            f"{type(error).__name__}: {error}"
        )
        self._tell_all(failure)
        self._sync.fail(failure)
        if isinstance(error, Exception):
            raise failure from error
        error.add_note(self._where_the_weights_are())  # Ctrl-C stays Ctrl-C

    def _forget_gradient(self, tensor: int) -> None:
        """Do what the user's ``zero_grad()`` would have done had the sum come in time."""
        if tensor in self._zeroed:
            parameter = self.trained.parameters[tensor]
            if self._zeroed.pop(tensor):
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
