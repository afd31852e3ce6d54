"""Put the hooks on the user's own model and optimizer."""

import atexit
import functools
import os
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from bytelane import __version__
from bytelane.core import Planner, Review
from bytelane.errors import NotSupported, TrainingError
from bytelane.runtime.engine import Engine
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.control import Control
from bytelane.runtime.torch.gate import (
    Gate,
    around_compiled,
    is_compiled,
    is_compiled_in_place,
    outside_compiled_code,
)
from bytelane.runtime.torch.groups import Groups
from bytelane.runtime.torch.onlooker import Onlooker
from bytelane.runtime.torch.peers import leave, meet
from bytelane.runtime.torch.session import Probe, Session
from bytelane.runtime.torch.status import Status
from bytelane.runtime.torch.support import first_problem, is_separable
from bytelane.runtime.torch.trained import describe, gated_modules, module_name, parameters_of
from bytelane.trace.recording import Recorder

# By the model's id, which is not used again while the session lives, since that holds the model.
# The hooks hold the session, so model and session go together.
_sessions: "weakref.WeakValueDictionary[int, Session]" = weakref.WeakValueDictionary()


def attach(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    planner: Planner,
    *,
    timeout_s: float,
    keep_iterations: int = 4,
    verify: bool = False,
    recorder: Recorder | None = None,
    probe: Probe | None = None,
    review: Review | None = None,
    farewell: Callable[[Status], None] | None = None,
    make_engine: Callable[..., Engine] = Engine,
    shared: Groups | None = None,
) -> Session | None:
    """Prepare a model for training; None where there is nobody to synchronise with.

    Models that are trained by turns may share their groups; otherwise each has some of its own.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        print("bytelane: one worker, nothing to synchronise", flush=True)
        return None
    if id(model) in _sessions:
        raise NotSupported("this model is prepared already; call prepare() once")
    _flush_all_at_exit()
    peers = meet(timeout_s)
    groups = shared or Groups(peers, timeout_s)
    control = Control(groups.agreeing, timeout_s, peers)
    agreement.refuse_together(first_problem(model, optimizers), control)
    _agree_on_model(model, control)
    session = Session(
        model,
        optimizers,
        planner,
        groups=groups,
        control=control,
        peers=peers,
        timeout_s=timeout_s,
        keep_iterations=keep_iterations,
        say=_say,
        verify=verify,
        recorder=recorder,
        probe=probe,
        review=review,
        make_engine=make_engine,
    )
    for optimizer in optimizers:
        if not is_separable(optimizer):
            _say(f"{type(optimizer).__name__} may couple parameters, so every step() waits for all")
    if not len(session.trained):
        _say("no parameter of the model is trained, nothing to synchronise")
    peers.tell(session.end)
    _hook_model(model, session)
    for number, optimizer in enumerate(optimizers):
        _hook_optimizer(optimizer, number, session)
    session.hook_gradients()
    Onlooker.start_watching()
    session.farewell = farewell
    _sessions[id(model)] = session
    if shared is None:
        weakref.finalize(session, groups.drop).atexit = False
    return session


def find_session(model: torch.nn.Module) -> Session | None:
    """Return what prepare() made of this model; None where there is only one worker."""
    session = _sessions.get(id(model))
    if session is None and dist.is_initialized() and dist.get_world_size() > 1:
        raise NotSupported("this model was not prepared; call bytelane.prepare() first")
    return session


def session_of(model: torch.nn.Module) -> Session:
    """Return what prepare() made of this model."""
    session = find_session(model)
    if session is None:
        raise NotSupported("there is only one worker, so nothing is synchronised")
    return session


def _agree_on_model(model: torch.nn.Module, control: Control) -> None:
    agreement.require_equal("the version of bytelane", __version__, control)
    agreement.require_equal("the model", describe(model), control)
    with torch.no_grad():
        agreement.copy_from(0, [*model.parameters(), *model.buffers()], control)


def _hook_model(model: torch.nn.Module, session: Session) -> None:
    for name, module in gated_modules(model):
        _put_gate(module, functools.partial(session.pass_gate, module_name(name)))
    _put_gate(model, session.enter_model, session.leave_model)
    model.register_state_dict_pre_hook(Gate(session.flush))  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(Gate(session.flush))  # type: ignore[no-untyped-call]
    _announce_zero_grad(model, session)
    if is_compiled(model):
        _say("the whole model is compiled, so every forward pass begins with waiting for all")


def _put_gate(
    module: torch.nn.Module, before: Callable[[], None], after: Callable[[], None] | None = None
) -> None:
    """Call ``before`` before the module's forward and earlier gates, and ``after`` after them."""
    if is_compiled_in_place(module):
        around_compiled(module, before, after or (lambda: None))
        return
    module.register_forward_pre_hook(Gate(before), prepend=True)
    if after is not None:
        # Also after an exception: what is owed must not stay behind unseen.
        module.register_forward_hook(Gate(after), always_call=True)


def _hook_optimizer(optimizer: torch.optim.Optimizer, number: int, session: Session) -> None:
    late_steps = session.steppers[number]

    @outside_compiled_code
    def before_step(
        _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if late_steps.active:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            session.before_step(number)
            return None
        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return (args[0], session.synchronised(closure, number), *args[2:]), others

    @outside_compiled_code
    def after_step(_: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not late_steps.active:
            session.after_step()

    optimizer.register_step_pre_hook(before_step)
    optimizer.register_step_post_hook(after_step)
    optimizer.register_state_dict_pre_hook(Gate(session.flush))
    optimizer.register_load_state_dict_pre_hook(Gate(session.flush))
    _announce_zero_grad(optimizer, session)


def _announce_zero_grad(owner: torch.nn.Module | torch.optim.Optimizer, session: Session) -> None:
    """Tell the session of ``owner.zero_grad()``, which has no hook.

    Without this the onlooker would see gradients being read at the head of every loop, and wait.
    """

    @outside_compiled_code
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if self is owner:  # and not a copy, which is a plain object again
            session.before_zero_grad(parameters_of(owner), set_to_none)
        with session.onlooker.looking_away():
            type(self).zero_grad(self, set_to_none)

    owner.zero_grad = types.MethodType(zero_grad, owner)  # type: ignore[method-assign]


@functools.cache
def _flush_all_at_exit() -> None:
    """See once to it that no rank leaves while others wait for what it owes them."""
    atexit.register(_flush_all)


def _flush_all() -> None:
    for session in list(_sessions.values()):
        try:
            session.settle_owed()
            session.say_farewell()
        except TrainingError as error:
            print(f"bytelane: at exit: {error}", flush=True)
    for session in list(_sessions.values()):
        session.come_to_rest()
    leave()


def _disown_all() -> None:
    for session in list(_sessions.values()):
        session.disown()
    _sessions.clear()


os.register_at_fork(after_in_child=_disown_all)


def _say(message: str) -> None:
    if dist.get_rank() == 0:
        print(f"bytelane: {message}", flush=True)
