"""Put the hooks on the user's own model and optimizer."""

import atexit
import contextlib
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from bytelane import __version__
from bytelane.core import Planner
from bytelane.errors import NotSupported, TrainingError
from bytelane.runtime.torch import agreement
from bytelane.runtime.torch.gate import Gate
from bytelane.runtime.torch.onlooker import Onlooker
from bytelane.runtime.torch.session import Session, module_name
from bytelane.runtime.torch.support import first_problem, is_separable

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
    group, control = _new_group(), _new_group()
    agreement.refuse_together(first_problem(model, optimizer), control)
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
    Onlooker.start_watching()
    _sessions[id(model)] = session
    weakref.finalize(session, _drop, group, control).atexit = False
    _flush_all_at_exit()
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
    described = [
        (name, tuple(p.shape), str(p.dtype), p.requires_grad)
        for name, p in model.named_parameters()
    ]
    agreement.require_equal("the version of bytelane", __version__, control)
    agreement.require_equal("the model", repr(described), control)
    with torch.no_grad():
        agreement.copy_from_first([*model.parameters(), *model.buffers()], control)


def _drop(*groups: dist.ProcessGroup) -> None:
    """Close the sockets and threads of a model that its user has dropped."""
    for group in groups:
        # The user may have destroyed all groups already.
        with contextlib.suppress(Exception):
            dist.destroy_process_group(group)


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

    def hook_for(parameter: torch.Tensor) -> Callable[..., None]:
        known = weakref.ref(parameter)

        def take_gradient(*_: Any) -> None:
            take, mine = weak(), known()
            if take is not None and mine is not None:
                take(mine)

        return take_gradient

    for parameter in session.parameters:
        # The node that accumulates the gradient, as in DDP: its hooks run after all of the user's
        # on the parameter, whoever came first. It lives as long as somebody holds it.
        with torch.enable_grad():
            function = parameter.view_as(parameter).grad_fn
        assert function is not None
        node = function.next_functions[0][0]
        assert node is not None
        node.register_hook(hook_for(parameter))
        session.nodes.append(node)


def _announce_zero_grad(owner: torch.nn.Module | torch.optim.Optimizer, session: Session) -> None:
    """Tell the session of ``owner.zero_grad()``, which has no hook.

    Without this the onlooker would see gradients being read at the head of every loop, and wait.
    """

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if self is owner:  # and not a copy, which is a plain object again
            session.before_zero_grad(_parameters_of(owner), set_to_none)
        with session.onlooker.looking_away():
            type(self).zero_grad(self, set_to_none)

    owner.zero_grad = types.MethodType(zero_grad, owner)  # type: ignore[method-assign]


def _parameters_of(owner: torch.nn.Module | torch.optim.Optimizer) -> list[torch.Tensor]:
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    return [p for group in owner.param_groups for p in group["params"]]


@functools.cache
def _flush_all_at_exit() -> None:
    """See once to it that no rank leaves while others wait for what it owes them."""
    atexit.register(_flush_all)


def _flush_all() -> None:
    for session in list(_sessions.values()):
        try:
            session.flush()
        except TrainingError as error:
            print(f"bytelane: at exit: {error}", flush=True)


def _say(message: str) -> None:
    if dist.get_rank() == 0:
        print(f"bytelane: {message}", flush=True)
