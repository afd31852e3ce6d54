"""Prepare a model: agree on it with all ranks, and hook the user's own model and optimizers."""

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
from bytelane.errors import NotSupported, TrainingError
from bytelane.foreign.torch import (
    compiled_call,
    inside_compiled,
    missing,
    replaced,
    set_compiled_call,
)
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.access_guard import AccessGuard
from bytelane.runtime.torch.carrier import Carrier, GlooCarrier
from bytelane.runtime.torch.control import Control
from bytelane.runtime.torch.forward_pass import SYNC_FLAG
from bytelane.runtime.torch.groups import Groups, rest_at_exit
from bytelane.runtime.torch.module_hooks import (
    ModuleHook,
    around_compiled,
    is_compiled,
    is_compiled_in_place,
    outside_compiled_code,
    refuse_scripting,
)
from bytelane.runtime.torch.parameters import (
    describe,
    describe_optimizers,
    gated_modules,
    parameters_of,
)
from bytelane.runtime.torch.peers import Peers, leave, meet
from bytelane.runtime.torch.separable_optimizers import is_separable
from bytelane.runtime.torch.server_carrier import ServerCarrier
from bytelane.runtime.torch.session import Session, Settings
from bytelane.runtime.torch.validation import argument_problem, first_problem
from bytelane.terminal import announce

# By the model's id, which is not used again while the session lives, since that holds the model.
# The hooks hold the session, so model and session go together.
_sessions: "weakref.WeakValueDictionary[int, Session]" = weakref.WeakValueDictionary()


# Torch's own zero_grad methods, whose effect the session knows.
ZERO_GRADS = (torch.nn.Module.zero_grad, torch.optim.Optimizer.zero_grad)
_ABSENT = object()


def attach(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    settings: Settings,
    *,
    shared: Groups | None = None,
) -> Session | None:
    """Prepare a model for training; None where there is no other rank to synchronise with.

    If it raises, model and optimizers have the hooks and attributes that they had before. Models
    that are trained by turns may share their process groups; otherwise each has its own.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        if problem := argument_problem(model, optimizers):
            raise NotSupported(problem)
        _require_alone()
        announce("one worker, nothing to synchronise")
        return None
    if id(model) in _sessions:
        raise NotSupported("this model is prepared already; call prepare() once")
    _require_names()
    _flush_all_at_exit()
    peers = meet(settings.timeout_s)
    with ExitStack() as undo:
        carrier = _open_carrier(peers, settings, shared)
        undo.callback(carrier.leave)
        served = settings.servers is not None
        problem = first_problem(model, optimizers, sparse_rows=served) or _trained_elsewhere(model)
        agreement.refuse_together(problem, carrier.control)
        _agree_on_model(model, optimizers, carrier.control)
        session = Session(model, optimizers, settings, carrier=carrier, say=_say)
        _say_what_waits(optimizers, session)
        peers.tell(session.end)
        _hook_model(model, session, undo)
        for number, optimizer in enumerate(optimizers):
            _hook_optimizer(optimizer, number, session, undo)
        session.hook_gradients()
        undo.pop_all()
    AccessGuard.start_watching()
    _sessions[id(model)] = session
    if shared is None:
        weakref.finalize(session, carrier.drop).atexit = False
    return session


def _say_what_waits(optimizers: Sequence[torch.optim.Optimizer], session: Session) -> None:
    for optimizer in optimizers:
        if not is_separable(optimizer):
            _say(f"{type(optimizer).__name__} may couple parameters, so every step() waits for all")
    if not len(session.parameters):
        _say("no parameter of the model is trained, nothing to synchronise")


def _open_carrier(peers: Peers, settings: Settings, shared: Groups | None) -> Carrier:
    if settings.servers is not None:
        return ServerCarrier(peers, settings.servers, settings.timeout_s)
    return GlooCarrier(shared or Groups(peers, settings.timeout_s), settings.timeout_s)


@functools.cache
def _require_names() -> None:
    """Refuse a torch that lacks a needed private name; print once which fallbacks are used."""
    if lacking := missing():
        raise NotSupported(lacking[0])
    for line in replaced():
        _say(line)


def find_session(model: torch.nn.Module) -> Session | None:
    """Return the session of a prepared model; None where there is only one worker."""
    session = _sessions.get(id(model))
    if session is None and dist.is_initialized() and dist.get_world_size() > 1:
        raise NotSupported("this model was not prepared; call bytelane.prepare() first")
    return session


def session_of(model: torch.nn.Module) -> Session:
    """Return the session of a prepared model; refuse if there is only one worker."""
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
        if session.parameters.number_of(parameter) is not None
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
        _put_hooks(module, functools.partial(session.forward.enter_module, name), None, undo)
    _put_hooks(model, session.forward.enter_model, session.forward.leave_model, undo)
    for register in (
        model.register_state_dict_pre_hook,
        model.register_load_state_dict_pre_hook,
    ):
        handle = register(ModuleHook(session.flush))  # type: ignore[no-untyped-call]
        undo.callback(handle.remove)
    _announce_zero_grad(model, session, undo)
    if is_compiled(model):
        _say("the whole model is compiled, so every forward pass begins with waiting for all")


def _put_hooks(
    module: torch.nn.Module,
    before: Callable[[], None],
    after: Callable[[], None] | None,
    undo: ExitStack,
) -> None:
    """Call ``before`` before the module's forward and its other hooks, and ``after`` after them."""
    _set(module, "__prepare_scriptable__", refuse_scripting, undo)
    if is_compiled_in_place(module):
        undo.callback(set_compiled_call, module, compiled_call(module))
        around_compiled(module, before, after or (lambda: None))
        return
    undo.callback(module.register_forward_pre_hook(ModuleHook(before), prepend=True).remove)
    if after is not None:
        # Also after an exception: owed updates must still be made.
        undo.callback(module.register_forward_hook(ModuleHook(after), always_call=True).remove)


def _hook_optimizer(
    optimizer: torch.optim.Optimizer, number: int, session: Session, undo: ExitStack
) -> None:
    late_steps = session.deferred.by_optimizer[number]

    @outside_compiled_code
    def before_step(
        _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if late_steps.active:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):  # some optimizers take the loss, or other values
            session.steps.before_step(number)
            return None
        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return (args[0], session.steps.synchronised(closure, number), *args[2:]), others

    @outside_compiled_code
    def after_step(_: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not late_steps.active:
            session.after_step()

    undo.callback(optimizer.register_step_pre_hook(before_step).remove)
    undo.callback(optimizer.register_step_post_hook(after_step).remove)
    undo.callback(optimizer.register_state_dict_pre_hook(ModuleHook(session.flush)).remove)
    undo.callback(optimizer.register_load_state_dict_pre_hook(ModuleHook(session.flush)).remove)
    _announce_zero_grad(optimizer, session, undo)


def _announce_zero_grad(
    owner: torch.nn.Module | torch.optim.Optimizer, session: Session, undo: ExitStack
) -> None:
    """Tell the session of ``owner.zero_grad()``, which has no hook.

    Without this the access guard would see gradients being read in every iteration, and wait. It
    does so for a ``zero_grad`` of the user's own, which may do anything.
    """
    if getattr(owner.zero_grad, "__func__", None) not in ZERO_GRADS:
        return

    @outside_compiled_code
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if self is owner:  # and not a copy, which is a plain object again
            session.steps.before_zero_grad(parameters_of(owner), set_to_none)
        with session.guard.looking_away():
            type(self).zero_grad(self, set_to_none)

    _set(owner, "zero_grad", types.MethodType(zero_grad, owner), undo)


def _set(owner: Any, name: str, value: Any, undo: ExitStack) -> None:
    """Set an attribute of this one object; ``undo`` restores the former value."""
    # The wrapper of torch.compile forwards most attributes to the module inside.
    for attributes in (vars(owner), vars(inside_compiled(owner))):
        undo.callback(_put_back, attributes, name, attributes.get(name, _ABSENT))
    setattr(owner, name, value)


def _put_back(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        attributes.pop(name, None)
    else:
        attributes[name] = value


@functools.cache
def _flush_all_at_exit() -> None:
    """Register, once, an exit handler: no rank may leave while others wait for its part."""
    rest_at_exit()  # registered first, so it runs last
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
        session.carrier.leave()
    leave()


def _disown_all() -> None:
    for session in list(_sessions.values()):
        session.disown()
    _sessions.clear()


os.register_at_fork(after_in_child=_disown_all)


def _say(message: str) -> None:
    if dist.get_rank() == 0:
        announce(message)
