"""All private names of torch that Bytelane uses, with a self-check and fallbacks.

A missing name that has a fallback costs time, not correctness. For the others ``missing()`` returns
sentences, which ``prepare()`` raises and ``bytelane doctor`` prints. Names are looked up once, on
import: many are used for every tensor of every iteration.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from bytelane.foreign import names
from bytelane.foreign.names import find
from bytelane.foreign.torch_names import NAMES

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


def missing() -> list[str]:
    """Return a sentence for each name that this version of torch lacks without a fallback."""
    return names.missing(_version(), NAMES, names.usable_torch(), _samples())


def replaced() -> list[str]:
    """Return a sentence for each name whose fallback is used with this version of torch."""
    return names.replaced(_version(), NAMES, _samples())


def _version() -> str:
    return f"torch {torch.__version__}"


def _samples() -> dict[str, Any]:
    """Return an object of each class whose attributes are made by its constructor."""
    nothing: list[torch.Tensor] = []
    return {
        "Module": torch.nn.Module(),
        "Optimizer": torch.optim.SGD([{"params": nothing}], lr=1.0),
    }


# --- thread-local dispatch state -----------------------------------------------------------------

included_keys: Callable[[], Any] = find("torch._C._dispatch_tls_local_include_set")
"""Return the dispatch keys that this thread adds to those of every tensor."""
excluded_keys: Callable[[], Any] = find("torch._C._dispatch_tls_local_exclude_set")
"""Return the dispatch keys that this thread leaves out."""
keys_from_number: Callable[[int], Any] = find("torch._C.DispatchKeySet.from_raw_repr")
"""Make a set of dispatch keys from its ``raw_repr()``."""
forced_keys: Callable[..., AbstractContextManager[None]] = find("torch._C._ForceDispatchKeyGuard")
"""Replace the sets of included and excluded dispatch keys for a while."""
trace_state: Callable[[], Any] = find("torch._C._get_tracing_state")
"""Return the recording of ``torch.jit.trace``; None outside of it."""
set_trace_state: Callable[[Any], None] = find("torch._C._set_tracing_state")
"""Pause or go on with ``torch.jit.trace``."""
without_transforms: Callable[[], AbstractContextManager[Any]] = find(
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack"
)
"""Leave all transforms of ``torch.func`` for a while."""
without_dispatch_modes: Callable[[], AbstractContextManager[Any]] = find(
    "torch.utils._python_dispatch._disable_current_modes"
)
"""Leave all dispatch modes for a while."""
set_grad_enabled: Callable[[bool], Any] = (
    find("torch._C._set_grad_enabled") or torch.set_grad_enabled
)
"""Switch gradients on or off, in 20 % of the time of ``torch.set_grad_enabled``."""

function_state: Callable[[], Any] = find("torch._C._get_torch_function_state")
"""Return whether torch functions of subclasses and modes are called."""
set_function_state: Callable[[Any], None] = find("torch._C._set_torch_function_state")
ALL_FUNCTIONS_DISABLED = find("torch._C._TorchFunctionState.ALL_DISABLED")


class _WithoutTorchFunction:
    """Call no torch function of a subclass or mode for a while."""

    def __enter__(self) -> None:
        self._before = function_state()
        set_function_state(ALL_FUNCTIONS_DISABLED)

    def __exit__(self, *error: object) -> None:
        set_function_state(self._before)


without_torch_function: Callable[[], AbstractContextManager[None]] = (
    find("torch._C.DisableTorchFunction") or _WithoutTorchFunction
)
"""Use tensors without calling any access guard, mode or subclass."""


deterministic: Any = torch.utils.deterministic  # a module with properties


def _set_memory_filling(wanted: bool) -> None:
    deterministic.fill_uninitialized_memory = wanted


def _set_mkldnn(wanted: bool) -> None:
    torch.backends.mkldnn.enabled = wanted  # type: ignore[assignment]


def _pair(
    get: str, set_: str, read: Callable[[], Any], write: Callable[[Any], None]
) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return how a setting is read and set: both by private names, or both by public ones."""
    private = find(f"torch._C.{get}"), find(f"torch._C.{set_}")
    return (read, write) if None in private else private


memory_filling = _pair(
    "_get_deterministic_fill_uninitialized_memory",
    "_set_deterministic_fill_uninitialized_memory",
    lambda: deterministic.fill_uninitialized_memory,
    _set_memory_filling,
)
"""How to read and set whether uninitialised memory is filled."""
mkldnn = _pair(
    "_get_mkldnn_enabled",
    "_set_mkldnn_enabled",
    lambda: torch.backends.mkldnn.enabled,
    _set_mkldnn,
)
"""How to read and set whether oneDNN computes."""


# --- modes ---------------------------------------------------------------------------------------

function_modes: Callable[[], list[Any]] = find("torch.overrides._get_current_function_mode_stack")
"""Return the stack of torch function modes, from the bottom."""
top_function_mode: Callable[[], Any] = find("torch.overrides._get_current_function_mode") or (
    lambda: (function_modes() or [None])[-1]
)
"""Return the torch function mode that is called first; None if there is none."""


def push_function_mode(mode: TorchFunctionMode) -> None:
    """Enter a mode by the base class's method: a user's own ``__enter__`` may do more."""
    TorchFunctionMode.__enter__(mode)  # type: ignore[no-untyped-call]


def pop_function_mode() -> Any:
    """Leave the mode on top, and return it."""
    mode = top_function_mode()
    TorchFunctionMode.__exit__(mode, None, None, None)  # type: ignore[no-untyped-call]
    return mode


def _type_of_device_modes() -> type:
    with torch.device("cpu"):
        return type(function_modes()[0])


DeviceMode: type = find("torch.utils._device.DeviceContext") or _type_of_device_modes()
"""The mode by which torch.device and torch.set_default_device place new tensors."""
_default_device: Any = find("torch._GLOBAL_DEVICE_CONTEXT")


def is_default_device(mode: Any) -> bool:
    """Tell whether ``torch.set_default_device`` has entered this mode, the lowest of the stack."""
    if _default_device is None:
        return isinstance(mode, DeviceMode)
    return mode is getattr(_default_device, "device_context", None)


is_transformed: Callable[[torch.Tensor], bool] = find(
    "torch._C._functorch.is_functorch_wrapped_tensor"
)
"""Tell whether a transform of ``torch.func`` has wrapped this tensor."""
inside_transformed: Callable[[torch.Tensor], torch.Tensor] = find(
    "torch._C._functorch.get_unwrapped"
)
"""Return the tensor within a wrapped one."""


# --- autograd and optimizers ---------------------------------------------------------------------

_graph_task: Callable[[], int] | None = find("torch._C._current_graph_task_id")
_BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}
_FUNCTIONAL = {
    torch.func.functional_call.__code__,
    torch.nn.utils.stateless.functional_call.__code__,
}


def in_backward() -> bool:
    """Tell whether this thread is within a backward pass."""
    return _is_within(_BACKWARD) if _graph_task is None else _graph_task() != -1


def in_functional_call() -> bool:
    """Tell whether ``functional_call`` has put other tensors into a model for the time being."""
    return _is_within(_FUNCTIONAL)


def _is_within(functions: set[Any]) -> bool:
    """Search the Python stack; on a CPU a backward pass runs in the thread that called it."""
    frame = sys._getframe()
    while frame.f_code not in functions:
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True


_OPTIMIZER_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
_GLOBAL_HOOKS = [
    find(f"torch.optim.optimizer._global_optimizer_{when}_hooks") for when in ("pre", "post")
]


def has_step_hooks(optimizer: torch.optim.Optimizer, ours: int = 1) -> bool:
    """Tell whether step() runs other hooks than Bytelane's, which has ``ours`` of each kind.

    True if torch does not show its hooks.
    """
    own = [getattr(optimizer, name, None) for name in _OPTIMIZER_HOOKS]
    if None in own or None in _GLOBAL_HOOKS:
        return True
    return any(len(hooks) > ours for hooks in own if hooks is not None) or any(_GLOBAL_HOOKS)


@cache
def _hook_places() -> frozenset[str]:
    return frozenset(name for name in vars(_samples()["Optimizer"]) if name.endswith("_hooks"))


def can_be_hooked(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether ``Optimizer.__init__`` has run, which makes the dictionaries of hooks."""
    return vars(optimizer).keys() >= _hook_places()


def _multiply_each(tensors: Sequence[torch.Tensor], factor: float) -> None:
    for tensor in tensors:
        tensor.mul_(factor)


multiply_all: Callable[[Sequence[torch.Tensor], float], None] = (
    find("torch._foreach_mul_") or _multiply_each
)
"""Multiply many tensors in place by one call."""


# --- modules -------------------------------------------------------------------------------------


def registered(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the dictionaries in which a module keeps its own parameters and its own modules."""
    return module._parameters, module._modules


def put_buffer(module: torch.nn.Module, name: str, buffer: torch.Tensor) -> None:
    """Register a buffer, also where a module has another attribute of that name."""
    module._buffers[name] = buffer


def is_compiled_wrapper(module: torch.nn.Module) -> bool:
    """Tell whether this module is the wrapper that ``torch.compile`` returns."""
    return isinstance(module, _compiled_wrapper())


@cache
def _compiled_wrapper() -> type:
    return find("torch._dynamo.OptimizedModule") or type(torch.compile(torch.nn.Identity()))


def inside_compiled(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that ``torch.compile`` was given, or the module itself."""
    inside: torch.nn.Module = getattr(module, "_orig_mod", module)
    return inside


def compiled_call(module: torch.nn.Module) -> Callable[..., Any] | None:
    """Return the compiled call that ``module.compile()`` has set; None if it was not compiled."""
    return getattr(module, "_compiled_call_impl", None)


def set_compiled_call(module: torch.nn.Module, call: Callable[..., Any] | None) -> None:
    """Let a module that was compiled in place call this instead."""
    module._compiled_call_impl = call


def never_compile_alone(function: Callable[..., Any]) -> None:
    """Let torch.compile inline this function into its caller, but never compile it by itself."""
    if (skip := find("torch._dynamo.eval_frame.skip_code")) is not None:
        skip(function.__code__)


# --- effects of torch.compile and DDP ------------------------------------------------------------


def compiled_frames() -> int:
    """Return how many pieces of Python code were compiled in this process."""
    return _counters()["frames"]["ok"] if _counters() else 0


def graph_breaks() -> list[str]:
    """Return the reasons why compiled graphs were split."""
    return list(_counters()["graph_break"]) if _counters() else []


def _counters() -> Any:
    # Loading the compiler takes seconds, and without it nothing was compiled.
    return find("torch._dynamo.utils.counters") if "torch._dynamo" in sys.modules else None


def ddp_splits_graphs() -> bool:
    """Tell whether compiled graphs are split at the buckets of DistributedDataParallel."""
    mode = find("torch._dynamo.utils.get_optimize_ddp_mode")
    return mode is not None and mode() == "ddp_optimizer"


def split_no_graphs() -> None:
    """Let DistributedDataParallel compile whole graphs from now on."""
    if (config := find("torch._dynamo.config")) is not None:
        config.optimize_ddp = False


def is_ignored_by_ddp(module: torch.nn.Module) -> bool:
    """Tell whether DistributedDataParallel was told to leave some parameters or buffers out."""
    return bool(getattr(module, "_ddp_params_and_buffers_to_ignore", None))


def sync_ddp_buffers(model: torch.nn.parallel.DistributedDataParallel) -> None:
    """Take rank 0's buffers where DistributedDataParallel does so before a forward pass."""
    is_due = getattr(model, "_check_sync_bufs_pre_fwd", lambda: False)
    if is_due():
        getattr(model, "_sync_buffers", lambda: None)()


# --- process groups ------------------------------------------------------------------------------

default_store: Callable[[], "Store"] = find("torch.distributed.distributed_c10d._get_default_store")
"""Return the store of ``init_process_group``."""


def group_on_gloo(store: "Store", gloo: "dist.ProcessGroupGloo") -> "dist.ProcessGroup":
    """Make a process group from gloo connections; torch does not know this group."""
    group = dist.ProcessGroup(store, gloo.rank(), gloo.size())
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return group


# --- trees of tensors: lists, dictionaries and registered classes --------------------------------


def _leaves(values: Any) -> Iterable[Any]:
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        yield values
        return
    for value in values:
        yield from _leaves(value)


def _map_leaves(kind: type, function: Callable[[Any], Any], values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _map_leaves(kind, function, value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        mapped = [_map_leaves(kind, function, value) for value in values]
        return type(values)(*mapped) if hasattr(values, "_fields") else type(values)(mapped)
    return function(values) if isinstance(values, kind) else values


tree_iter: Callable[[Any], Iterable[Any]] = find("torch.utils._pytree.tree_iter") or _leaves
"""Return all leaves of nested lists, dictionaries and the like."""
tree_map_only: Callable[[type, Callable[[Any], Any], Any], Any] = (
    find("torch.utils._pytree.tree_map_only") or _map_leaves
)
"""Map a function over the leaves of one type in nested lists, dictionaries and the like."""
