"""Put the hooks on the user's own model and optimizer."""

import atexit
import functools
import types
import weakref
from typing import Any

import torch
import torch.distributed as dist

from bytelane import __version__
from bytelane.core import Planner
from bytelane.errors import NotSupported, TrainingError
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.gate import Gate
from bytelane.runtime.torch.session import Session, module_name
from bytelane.runtime.torch.support import is_separable, require_supported

# By the model's id, which is not used again while the session lives, since that holds the model.
# The hooks hold the session, so model and session go together.
_sessions: "weakref.WeakValueDictionary[int, Session]" = weakref.WeakValueDictionary()


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    planner: Planner,
    *,
    timeout_s: float,
    keep_iterations: int = 4,
) -> Session | None:
    """Prepare a model for training; None where there is nobody to synchronise with."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        print("bytelane: one worker, nothing to synchronise", flush=True)
        return None
    if id(model) in _sessions:
        raise NotSupported("this model is prepared already; call prepare() once")
    world = dist.group.WORLD
    assert world is not None
    require_supported(model, optimizer, world)
    group, control = _new_group(), _new_group()
    _agree_on_model(model, control)
    session = Session(
        model,
        optimizer,
        planner,
        group=group,
        control=control,
        timeout_s=timeout_s,
        keep_iterations=keep_iterations,
        say=_say,
    )
    if not is_separable(optimizer):
        _say(f"{type(optimizer).__name__} may couple parameters, so every step() waits for all")
    _hook_model(model, session)
    _hook_optimizer(optimizer, session)
    _hook_parameters(session)
    session.onlooker.__enter__()  # type: ignore[no-untyped-call]
    _sessions[id(model)] = session
    atexit.register(_flush_at_exit, weakref.ref(session))
    return session


def session_of(model: torch.nn.Module) -> Session:
    """Return what prepare() made of this model."""
    session = _sessions.get(id(model))
    if session is None:
        raise NotSupported("this model was not prepared, or there is only one worker")
    return session


def _new_group() -> dist.ProcessGroup:
    # Groups of our own: an operation of ours never meets a collective of the user's.
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group


def _agree_on_model(model: torch.nn.Module, control: dist.ProcessGroup) -> None:
    described = [(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters()]
    agreement.require_equal("the version of bytelane", __version__, control)
    agreement.require_equal("the model", repr(described), control)
    with torch.no_grad():
        agreement.copy_from_first([*model.parameters(), *model.buffers()], control)


def _hook_model(model: torch.nn.Module, session: Session) -> None:
    model.register_forward_pre_hook(Gate(session.enter_model))
    for name, module in model.named_modules():
        own = [session.tensor_of(p) for p in module.parameters(recurse=False)]
        tensors = tuple(tensor for tensor in own if tensor is not None)
        if tensors:
            gate = functools.partial(session.pass_gate, module_name(name), tensors)
            module.register_forward_pre_hook(Gate(gate))
    # Also after an exception: what is owed must not stay behind unseen.
    model.register_forward_hook(Gate(session.leave_model), always_call=True)
    model.register_state_dict_pre_hook(Gate(session.flush))  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(Gate(session.flush))  # type: ignore[no-untyped-call]
    _announce_zero_grad(model, session)


def _hook_optimizer(optimizer: torch.optim.Optimizer, session: Session) -> None:
    def before_step(_: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not session.stepping:
            given = [*args[1:], *kwargs.values()]
            session.before_step(closure_given=any(value is not None for value in given))

    def after_step(_: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not session.stepping:
            session.after_step()

    optimizer.register_step_pre_hook(before_step)
    optimizer.register_step_post_hook(after_step)
    optimizer.register_state_dict_pre_hook(Gate(session.flush))
    optimizer.register_load_state_dict_pre_hook(Gate(session.flush))
    _announce_zero_grad(optimizer, session)


def _hook_parameters(session: Session) -> None:
    # Weak: a parameter keeps its hooks where the garbage collector does not look.
    weak = weakref.WeakMethod(session.take_gradient)

    def take_gradient(parameter: torch.Tensor) -> None:
        take = weak()
        if take is not None:
            take(parameter)

    for parameter in session.parameters:
        parameter.register_post_accumulate_grad_hook(take_gradient)  # type: ignore[no-untyped-call]


def _announce_zero_grad(owner: torch.nn.Module | torch.optim.Optimizer, session: Session) -> None:
    """Tell the session of ``owner.zero_grad()``, which has no hook.

    Without this the onlooker would see gradients being read at the head of every loop, and wait.
    """

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if self is owner:  # and not a copy, which is a plain object again
            session.before_zero_grad(set_to_none)
        with session.onlooker.looking_away():
            type(self).zero_grad(self, set_to_none)

    owner.zero_grad = types.MethodType(zero_grad, owner)  # type: ignore[method-assign]


def _flush_at_exit(session: "weakref.ref[Session]") -> None:
    # Other ranks may still wait for what this one owes them, to save a checkpoint for example.
    alive = session()
    if alive is not None:
        try:
            alive.flush()
        except TrainingError as error:
            _say(f"at exit: {error}")


def _say(message: str) -> None:
    if dist.get_rank() == 0:
        print(f"bytelane: {message}", flush=True)
