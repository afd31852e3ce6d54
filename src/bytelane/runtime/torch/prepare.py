"""Put the hooks on the user's own model and optimizer."""

import atexit
import functools
import gc
import os
import types
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
    refuse_scripting,
)
from bytelane.runtime.torch.groups import Groups
from bytelane.runtime.torch.onlooker import Onlooker
from bytelane.runtime.torch.peers import leave, meet
from bytelane.runtime.torch.session import SYNC_FLAG, Probe, Session
from bytelane.runtime.torch.status import Status
from bytelane.runtime.torch.support import argument_problem, first_problem, is_separable
from bytelane.runtime.torch.trained import (
    describe,
    describe_optimizers,
    gated_modules,
    module_name,
    parameters_of,
)
from bytelane.terminal import announce
from bytelane.trace.recording import Recorder

# By the model's id, which is not used again while the session lives, since that holds the model.
# The hooks hold the session, so model and session go together.
_sessions: "weakref.WeakValueDictionary[int, Session]" = weakref.WeakValueDictionary()


# Those of torch, whose effect the session knows.
ZERO_GRADS = (torch.nn.Module.zero_grad, torch.optim.Optimizer.zero_grad)
_ABSENT = object()


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

    If it raises, model and optimizers have the hooks and attributes that they had before. Models
    that are trained by turns may share their groups; otherwise each has some of its own.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        if problem := argument_problem(model, optimizers):
            raise NotSupported(problem)
        _require_alone()
        announce("one worker, nothing to synchronise")
        return None
    if id(model) in _sessions:
        raise NotSupported("this model is prepared already; call prepare() once")
    _flush_all_at_exit()
    peers = meet(timeout_s)
    groups = shared or Groups(peers, timeout_s)
    control = Control(groups.agreeing, timeout_s, peers)
    problem = first_problem(model, optimizers) or _trained_elsewhere(model)
    agreement.refuse_together(problem, control)
    _agree_on_model(model, optimizers, control)
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
    with ExitStack() as undo:
        _hook_model(model, session, undo)
        for number, optimizer in enumerate(optimizers):
            _hook_optimizer(optimizer, number, session, undo)
        session.hook_gradients()
        undo.pop_all()
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


def _require_alone() -> None:
    """Refuse to train alone where a launcher has started several ranks."""
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        workers = os.environ.get(name, "1")
        if workers.isdecimal() and int(workers) > 1:
            raise NotSupported(
                f"{name} is {workers}, but this process would train alone: call "
                'torch.distributed.init_process_group("gloo") before bytelane.prepare(), or unset '
                f"{name} to train with one worker"
            )


def _trained_elsewhere(model: torch.nn.Module) -> str:
    """Say which parameter another prepared model trains, since it would be summed twice."""
    if not _shared_parameters(model):
        return ""
    gc.collect()  # the user may have dropped that model
    shared = _shared_parameters(model)
    return f"{shared[0]} is trained by a model that is prepared already" if shared else ""


def _shared_parameters(model: torch.nn.Module) -> list[str]:
    return [
        name
        for session in list(_sessions.values())
        for name, parameter in model.named_parameters()
        if session.trained.number_of(parameter) is not None
    ]


def _agree_on_model(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], control: Control
) -> None:
    agreement.require_equal("the version of bytelane", __version__, control)
    agreement.require_equal("the model", describe(model), control)
    agreement.require_equal("the optimizer", describe_optimizers(model, optimizers), control)
    with torch.no_grad():
        agreement.copy_from(0, [*model.parameters(), *model.buffers()], control)


def _hook_model(model: torch.nn.Module, session: Session, undo: ExitStack) -> None:
    _set(model, SYNC_FLAG, True, undo)
    for name, module in gated_modules(model):
        _put_gate(module, functools.partial(session.pass_gate, module_name(name)), None, undo)
    _put_gate(model, session.enter_model, session.leave_model, undo)
    for register in (
        model.register_state_dict_pre_hook,
        model.register_load_state_dict_pre_hook,
    ):
        handle = register(Gate(session.flush))  # type: ignore[no-untyped-call]
        undo.callback(handle.remove)
    _announce_zero_grad(model, session, undo)
    if is_compiled(model):
        _say("the whole model is compiled, so every forward pass begins with waiting for all")


def _put_gate(
    module: torch.nn.Module,
    before: Callable[[], None],
    after: Callable[[], None] | None,
    undo: ExitStack,
) -> None:
    """Call ``before`` before the module's forward and earlier gates, and ``after`` after them."""
    _set(module, "__prepare_scriptable__", refuse_scripting, undo)
    if is_compiled_in_place(module):
        undo.callback(setattr, module, "_compiled_call_impl", module._compiled_call_impl)
        around_compiled(module, before, after or (lambda: None))
        return
    undo.callback(module.register_forward_pre_hook(Gate(before), prepend=True).remove)
    if after is not None:
        # Also after an exception: what is owed must not stay behind unseen.
        undo.callback(module.register_forward_hook(Gate(after), always_call=True).remove)


def _hook_optimizer(
    optimizer: torch.optim.Optimizer, number: int, session: Session, undo: ExitStack
) -> None:
    late_steps = session.steppers[number]

    @outside_compiled_code
    def before_step(
        _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if late_steps.active:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):  # some optimizers take the loss, or other values
            session.before_step(number)
            return None
        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return (args[0], session.synchronised(closure, number), *args[2:]), others

    @outside_compiled_code
    def after_step(_: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not late_steps.active:
            session.after_step()

    undo.callback(optimizer.register_step_pre_hook(before_step).remove)
    undo.callback(optimizer.register_step_post_hook(after_step).remove)
    undo.callback(optimizer.register_state_dict_pre_hook(Gate(session.flush)).remove)
    undo.callback(optimizer.register_load_state_dict_pre_hook(Gate(session.flush)).remove)
    _announce_zero_grad(optimizer, session, undo)


def _announce_zero_grad(
    owner: torch.nn.Module | torch.optim.Optimizer, session: Session, undo: ExitStack
) -> None:
    """Tell the session of ``owner.zero_grad()``, which has no hook.

    Without this the onlooker would see gradients being read at the head of every loop, and wait.
    It does so for a ``zero_grad`` of the user's own, which may do anything.
    """
    if getattr(owner.zero_grad, "__func__", None) not in ZERO_GRADS:
        return

    @outside_compiled_code
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if self is owner:  # and not a copy, which is a plain object again
            session.before_zero_grad(parameters_of(owner), set_to_none)
        with session.onlooker.looking_away():
            type(self).zero_grad(self, set_to_none)

    _set(owner, "zero_grad", types.MethodType(zero_grad, owner), undo)


def _set(owner: Any, name: str, value: Any, undo: ExitStack) -> None:
    """Set an attribute of this one object; undone, the object has what it had before."""
    # What torch.compile returns hands most attributes on to the module inside.
    for attributes in (vars(owner), vars(getattr(owner, "_orig_mod", owner))):
        undo.callback(_put_back, attributes, name, attributes.get(name, _ABSENT))
    setattr(owner, name, value)


def _put_back(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        attributes.pop(name, None)
    else:
        attributes[name] = value


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
            announce(". ".join([f"at exit: {error}", *getattr(error, "__notes__", [])]))
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
        announce(message)
