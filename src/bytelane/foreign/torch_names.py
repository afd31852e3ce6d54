"""The private names of torch that Bytelane uses: what for, and what happens without each."""

from bytelane.foreign.names import Name

_MODE = "make deferred updates outside of the user's modes, traces and transforms"
_GUARD = "see which tensors a torch function uses"
_STEPS_WAIT = "every step() waits for all tensors"
NAMES = (
    Name("torch._C._dispatch_tls_local_include_set", _MODE),
    Name("torch._C._dispatch_tls_local_exclude_set", _MODE),
    Name("torch._C.DispatchKeySet.from_raw_repr", _MODE),
    Name("torch._C.DispatchKeySet.raw_repr", _MODE),
    Name("torch._C._ForceDispatchKeyGuard", _MODE),
    Name("torch._C._get_tracing_state", _MODE),
    Name("torch._C._set_tracing_state", _MODE),
    Name("torch._C._get_torch_function_state", _MODE),
    Name("torch._C._set_torch_function_state", _MODE),
    Name("torch._C._TorchFunctionState.ALL_DISABLED", _MODE),
    Name("torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack", _MODE),
    Name("torch.utils._python_dispatch._disable_current_modes", _MODE),
    Name("torch.overrides._get_current_function_mode_stack", _GUARD),
    Name("torch._C._functorch.is_functorch_wrapped_tensor", _GUARD),
    Name("torch._C._functorch.get_unwrapped", _GUARD),
    Name("torch.distributed.distributed_c10d._get_default_store", "let the ranks find each other"),
    Name("torch.distributed.ProcessGroup._register_backend", "open connections of its own"),
    Name("Module._parameters", "notice that a model has other parameters than before"),
    Name("Module._modules", "notice that a model has other modules than before"),
    Name("Module._buffers", "put a profiled model's buffers back"),
    Name("torch._C._current_graph_task_id", "the Python stack is searched for backward()", True),
    Name("torch._C.DisableTorchFunction", "the state of torch functions is switched", True),
    Name("torch._C._set_grad_enabled", "torch.set_grad_enabled takes its place", True),
    Name(
        "torch._C._get_deterministic_fill_uninitialized_memory",
        "torch.utils.deterministic takes its place",
        True,
    ),
    Name("torch._C._get_mkldnn_enabled", "torch.backends.mkldnn takes its place", True),
    Name("torch.overrides._get_current_function_mode", "the whole stack of modes is read", True),
    Name("torch.utils._device.DeviceContext", "its type is found by entering a device", True),
    Name("torch._GLOBAL_DEVICE_CONTEXT", "the lowest mode is taken for a default device", True),
    Name("torch._foreach_mul_", "gradients are divided one by one", True),
    Name("torch.optim.optimizer._global_optimizer_pre_hooks", _STEPS_WAIT, True),
    Name("torch.optim.optimizer._global_optimizer_post_hooks", _STEPS_WAIT, True),
    Name("Optimizer._optimizer_step_pre_hooks", _STEPS_WAIT, True),
    Name("Optimizer._optimizer_step_post_hooks", _STEPS_WAIT, True),
    Name("torch.nn.Module._compiled_call_impl", "compiled graphs are split at our hooks", True),
    Name("torch._dynamo.OptimizedModule", "its type is found by compiling a module", True),
    Name("torch._dynamo.eval_frame.skip_code", "the access guard may be compiled", True),
    Name("torch._dynamo.utils.counters", "try does not explain compiled graphs", True),
    Name("torch._dynamo.utils.get_optimize_ddp_mode", "try does not explain split graphs", True),
    Name(
        "torch._dynamo.config.optimize_ddp", "try cannot switch the splitting of graphs off", True
    ),
    Name(
        "torch.nn.parallel.DistributedDataParallel._check_sync_bufs_pre_fwd",
        "try leaves each rank its own buffers in an evaluation",
        True,
    ),
    Name(
        "torch.nn.parallel.DistributedDataParallel._sync_buffers",
        "try leaves each rank its own buffers in an evaluation",
        True,
    ),
    Name("torch.utils._pytree.tree_iter", "profile looks into lists and dictionaries only", True),
    Name("torch.utils._pytree.tree_map_only", "profile moves lists and dictionaries only", True),
)
