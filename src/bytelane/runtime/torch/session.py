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

import itertools
from collections.abc import Iterable
from typing import Protocol

import torch
import torch.distributed as dist
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from bytelane.core import Plan, Planner, bucket_plan
from bytelane.errors import NotSupported, TrainingError
from bytelane.job import Job, Tensor
from bytelane.runtime.engine import Engine
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.onlooker import Onlooker
from bytelane.runtime.torch.stepping import PartialStepper
from bytelane.runtime.torch.stopwatch import Stopwatch, durations, measured_job
from bytelane.runtime.torch.support import is_separable
from bytelane.runtime.torch.transport import AllReduceTransport

# The first iteration allocates memory and is not typical; the next ones are measured.
MEASURED_ITERATIONS = (1, 2)
FIRST_BUCKET_BYTES = 25 * 10**6
OUTSIDE = "the loop"


class Say(Protocol):
    """Where the one-line messages go."""

    def __call__(self, message: str) -> None: ...


class Session:
    """The state of one model that trains with one optimizer."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        planner: Planner,
        *,
        group: dist.ProcessGroup,
        control: dist.ProcessGroup,
        timeout_s: float,
        keep_iterations: int,
        say: Say,
    ) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad and p.numel()]
        self.names = tuple(name for name, _ in named)
        self.parameters = tuple(p for _, p in named)
        self._dtype = self.parameters[0].dtype
        self.watch = Stopwatch(keep_iterations)
        self.job: Job | None = None
        self._owners = _owners(model, self.parameters)
        self._model = model
        self._optimizer = optimizer
        self._planner = planner
        self.group = group
        self._control = control
        self._timeout_s = timeout_s
        self._say = say
        self._stepper = PartialStepper(optimizer)
        self._taken: set[int] = set()
        self._owed: set[int] = set()
        self._zeroed: dict[int, bool] = {}
        self._gradients: list[torch.Tensor | None] = [None] * len(self.parameters)
        self._tensor_of = {id(p): t for t, p in enumerate(self.parameters)}
        self._iteration_open = False
        self._opened_in = 0
        self.nodes: list[object] = []
        """Autograd's nodes with our hooks on them, which would vanish if nobody held them."""
        self._steps = 0
        self._waiting_optimizer = not is_separable(optimizer)
        self.onlooker = Onlooker(self.settle)
        self._install(bucket_plan(self._tensor_bytes, FIRST_BUCKET_BYTES))

    @property
    def plan(self) -> Plan:
        return self._engine.plan

    def tensor_of(self, parameter: torch.Tensor) -> int | None:
        """Return the number of a trained parameter."""
        return self._tensor_of.get(id(parameter))

    # --- forward -------------------------------------------------------------------------------

    def enter_model(self) -> None:
        """The root module's forward begins."""
        self.onlooker.paused = False  # a step() that raised has left it so
        if torch.is_grad_enabled():
            self._copy_buffers()
            self.watch.start("outside", OUTSIDE)

    def pass_gate(self, module: str, tensors: tuple[int, ...]) -> None:
        """A module is about to use its own parameters."""
        self.watch.stop()
        self.settle(tensors)
        if torch.is_grad_enabled():
            self.watch.start("forward", module)

    def leave_model(self) -> None:
        """The root module's forward is over; a module that was left out is settled now."""
        self.watch.stop()
        self.flush()
        if torch.is_grad_enabled():
            self.watch.start("backward", OUTSIDE)

    def _copy_buffers(self) -> None:
        """Take rank 0's buffers before a training forward, as DDP does."""
        buffers = list(self._model.buffers())
        if buffers:
            with self.onlooker.looking_away(), torch.no_grad():
                agreement.copy_from_first(buffers, self._control)

    # --- backward ------------------------------------------------------------------------------

    def take_gradient(self, parameter: torch.Tensor) -> None:
        """A gradient is complete: hand it over."""
        tensor = self._tensor_of[id(parameter)]
        self.watch.stop("backward", self._owners[tensor][0])
        with self.onlooker.looking_away(), torch.no_grad():
            if tensor in self._owed:
                raise TrainingError(
                    f"{self.names[tensor]} was used before its last update had arrived, by "
                    "something that neither a module's forward nor a torch function shows"
                )
            self._open_iteration(tensor)
            gradient = self._usable_gradient(tensor)
            self._transport.take(tensor, gradient)
            self._taken.add(tensor)
            self.onlooker.watch(tensor, (parameter, gradient))
            self._engine.notify_ready(tensor)
        self.watch.start("backward", OUTSIDE)

    def _usable_gradient(self, tensor: int) -> torch.Tensor:
        gradient, name = self.parameters[tensor].grad, self.names[tensor]
        if gradient is None:
            raise NotSupported(f"a hook has taken the gradient of {name} away before it was sent")
        if gradient.layout is not torch.strided:
            raise NotSupported(f"the gradient of {name} is sparse, which is not supported")
        return gradient

    def _open_iteration(self, tensor: int) -> None:
        if self._owed:  # by modules that this forward pass has left out
            self.flush()
        if not self._iteration_open:
            self._engine.begin_iteration()
            self._transport.begin_iteration()
            self._iteration_open = True
            self._opened_in = self.watch.iteration
        elif self._engine.is_ready(tensor):
            raise NotSupported(
                f"a second backward pass reached {self.names[tensor]} before optimizer.step(); "
                "gradient accumulation is not supported yet"
            )

    # --- the optimizer -------------------------------------------------------------------------

    def before_step(self, closure_given: bool) -> None:
        """The user calls ``step()``: what has arrived is stepped now, the rest is owed."""
        self.watch.stop("outside", OUTSIDE)
        if closure_given:
            raise NotSupported("step(closure) is not supported yet; call backward() and step()")
        with self.onlooker.looking_away():
            self._require_hooks()
            if self._owed:  # a second step() with the same gradients
                self.flush()
            if self._iteration_open:
                self._require_complete()
                if self.plan.barrier or self._waiting_optimizer or self._has_step_hooks():
                    self.settle(tuple(self._taken))
                else:
                    self._defer()
        self.onlooker.paused = True
        self.watch.start("update", OUTSIDE)

    def after_step(self) -> None:
        self.onlooker.paused = False
        self.watch.stop()
        if self._iteration_open:
            self._steps += 1
            self._close_iteration()
            if self._steps == max(MEASURED_ITERATIONS) + 1:
                self._replan()
            self.watch.begin_iteration()
        self.watch.start("outside", OUTSIDE)

    @property
    def stepping(self) -> bool:
        """Tell whether the running ``step`` is one of our own late ones."""
        return self._stepper.active

    def before_zero_grad(self, parameters: Iterable[torch.Tensor], set_to_none: bool) -> None:
        """These gradients are thrown away; those still owed are kept, for the update only."""
        tensors = {self._tensor_of[id(p)] for p in parameters if id(p) in self._tensor_of}
        self.settle(tensors & self._taken)
        for tensor in tensors & self._owed:
            self._zeroed[tensor] = set_to_none
        if len(tensors) == len(self.parameters):
            self._close_iteration()  # a backward pass that was not followed by a step()

    def _require_hooks(self) -> None:
        """Nothing that tells us of gradients and of looks may have been lost."""
        if not Onlooker.is_watching():
            raise NotSupported(
                "prepare() was called in another thread than this one, or somebody has taken the "
                "watch on parameters away; call prepare() in the thread that trains"
            )
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.dtype != self._dtype:
                raise NotSupported(
                    f"{name} has become {parameter.dtype} since prepare(); change dtypes before it"
                )

    def _require_complete(self) -> None:
        for tensor, name in enumerate(self.names):
            if not self._engine.is_ready(tensor):
                raise NotSupported(_without_gradient(name, self.parameters[tensor]))
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.numel() and id(p) not in self._tensor_of:
                    raise NotSupported(
                        f"a parameter of shape {tuple(p.shape)} has a gradient, but it was frozen "
                        "or not in the model when prepare() was called; that is not supported yet"
                    )

    def _has_step_hooks(self) -> bool:
        # Late steps would run the user's hooks several times; ours is one of each.
        optimizer = self._optimizer
        own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        everybodys = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
        return any(len(hooks) > 1 for hooks in own) or any(everybodys)

    def _defer(self) -> None:
        self._stepper.remember()
        arrived = [t for t in self._taken if self._engine.has_arrived(t)]
        self.settle(arrived)
        for tensor in self._taken:
            parameter = self.parameters[tensor]
            self._gradients[tensor] = parameter.grad
            parameter.grad = None
        self._owed, self._taken = self._taken, set()

    # --- settling ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Bring everything up to date."""
        self.settle([*self._taken, *self._owed])

    def settle(self, tensors: Iterable[int]) -> None:
        """Wait for these tensors, and finish what they are owed."""
        taken = [t for t in tensors if t in self._taken]
        owed = [t for t in tensors if t in self._owed]
        if not taken and not owed:
            return
        with self.onlooker.looking_away(), torch.no_grad():
            self._engine.wait([*taken, *owed])
            for tensor in taken:
                gradient = self.parameters[tensor].grad
                assert gradient is not None
                self._transport.give(tensor, gradient)
                self._taken.discard(tensor)
                self.onlooker.forget(tensor)
            if owed:
                # One step for many is cheaper than many: take along what has arrived meanwhile.
                others = [t for t in self._owed.difference(owed) if self._engine.has_arrived(t)]
                self._update(owed + others)

    def _update(self, tensors: list[int]) -> None:
        self.watch.start("update", self._owners[tensors[0]][0])
        for tensor in tensors:
            gradient = self._gradients[tensor]
            assert gradient is not None
            self._transport.give(tensor, gradient)
            self.parameters[tensor].grad = gradient
        self._stepper.step(self.parameters[t] for t in tensors)
        for tensor in tensors:
            self._forget_gradient(tensor)
            self._owed.discard(tensor)
            self.onlooker.forget(tensor)
        self.watch.stop()
        self._close_iteration()

    def _forget_gradient(self, tensor: int) -> None:
        """Do what the user's ``zero_grad()`` would have done had the update come in time."""
        gradient = self._gradients[tensor]
        self._gradients[tensor] = None
        if tensor in self._zeroed:
            if self._zeroed.pop(tensor):
                self.parameters[tensor].grad = None
            elif gradient is not None:
                gradient.zero_()

    def _close_iteration(self) -> None:
        if self._iteration_open and not self._taken and not self._owed:
            self._iteration_open = False
            self.watch.add_transfers(
                self._engine.transfers, self.plan, self.names, self._owners, self._opened_in
            )

    # --- plans ---------------------------------------------------------------------------------

    @property
    def _tensor_bytes(self) -> tuple[int, ...]:
        return tuple(p.numel() * p.element_size() for p in self.parameters)

    def _install(self, plan: Plan) -> None:
        """Use this plan from now on; nothing of the last one may be in flight."""
        self._transport = AllReduceTransport(plan, self._dtype, self.group, self.names)
        self._engine = Engine(
            plan, self._transport, tensor_names=self.names, timeout_s=self._timeout_s
        )

    def _replan(self) -> None:
        """Measured enough: let rank 0 plan, and take its plan on every rank from the next step."""
        mine = self.watch.layer_order(MEASURED_ITERATIONS[-1])
        layers = agreement.names_from_first(mine, self._control)
        if not layers:
            self._say("the model's own forward never ran, so the plain buckets stay")
            return
        self.job = self._measure(layers)
        plan = None
        try:
            if self._control.rank() == 0:
                plan = self._planner(self.job, self.plan.version + 1)
        finally:  # also if that failed: the other ranks must not wait for ever
            agreed = agreement.share_plan(plan, self._control)
        self._install(agreed)

    def _measure(self, layers: list[str]) -> Job:
        mine = durations(self.watch, layers, MEASURED_ITERATIONS)
        all_of_us = agreement.slowest(list(itertools.accumulate(mine)), self._control)
        steps = [b - a for a, b in itertools.pairwise([0.0, *all_of_us])]
        place = {name: i for i, name in enumerate(layers)}
        tensors = [
            Tensor(name, size, tuple(sorted({place.get(owner, 0) for owner in owners})))
            for name, size, owners in zip(self.names, self._tensor_bytes, self._owners, strict=True)
        ]
        return measured_job(type(self._model).__name__, layers, tensors, steps)


def _without_gradient(name: str, parameter: torch.Tensor) -> str:
    if not parameter.requires_grad:
        return f"{name} was frozen after prepare(), which is not supported yet"
    return (
        f"{name} got no gradient in this iteration; parameters that are not used in every "
        "iteration are not supported yet"
    )


def _owners(model: torch.nn.Module, parameters: tuple[torch.Tensor, ...]) -> list[tuple[str, ...]]:
    """Return the modules that hold each parameter; tied ones have several."""
    found: dict[int, list[str]] = {id(p): [] for p in parameters}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in found:
                found[id(parameter)].append(module_name(name))
    return [tuple(found[id(p)]) for p in parameters]


def module_name(name: str) -> str:
    """Name the root module too."""
    return name or "(model)"
