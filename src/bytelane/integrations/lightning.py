"""Integrate with Lightning: ``Trainer(strategy=BytelaneStrategy(), devices=2)``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import bytelane
from bytelane.errors import MissingExtra, NotSupported

try:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError:
    raise MissingExtra(
        "this needs Lightning; install it with: pip install 'bytelane[lightning]'"
    ) from None

from bytelane.foreign import lightning as foreign
from bytelane.measure.patches import replaced
from bytelane.runtime.torch.separable_optimizers import is_separable
from bytelane.terminal import announce

# Options of DDPStrategy that do not concern DistributedDataParallel itself.
SHARED = {
    "accelerator",
    "parallel_devices",
    "cluster_environment",
    "checkpoint_io",
    "precision_plugin",
    "process_group_backend",
    "timeout",
    "start_method",
}


class BytelaneStrategy(DDPStrategy):
    """A DDPStrategy that does not wrap the module: Bytelane synchronises the gradients.

    ``knobs`` go to :func:`bytelane.prepare`: a policy, its partition. Options are DDPStrategy's;
    those of DistributedDataParallel have no meaning here and are refused.
    """

    def __init__(self, knobs: dict[str, Any] | None = None, **options: Any) -> None:
        foreign = sorted(options.keys() - SHARED)
        if foreign:
            raise NotSupported(f"{foreign[0]} concerns DistributedDataParallel; leave it out")
        super().__init__(**options)
        self._knobs = knobs or {}

    def configure_ddp(self) -> None:
        """Wrap nothing: the module itself is prepared once there are optimizers."""

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            for line in foreign.replaced():
                announce(line)
            bytelane.prepare(self._module, self.optimizers, **self._knobs)

    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        """Go through the module's own call, as DDP does: that is where Bytelane's hooks are."""
        with self.precision_plugin.train_step_context():
            return foreign.call_as_forward(
                self, self._module, "training_step", *arguments, **keywords
            )

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: LightningModule | torch.nn.Module | None = None,
        **keywords: Any,
    ) -> Any:
        if not is_separable(optimizer):
            return super().optimizer_step(optimizer, closure, model, **keywords)
        with _closure_first(optimizer):
            return super().optimizer_step(optimizer, closure, model, **keywords)

    def on_validation_start(self) -> None:
        """Evaluate with rank 0's buffers everywhere, as DDP does."""
        for buffer in self._module.buffers():
            whole = buffer.contiguous()  # gloo needs contiguous tensors
            torch.distributed.broadcast(whole, 0)
            buffer.copy_(whole)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank only."""
        with bytelane.no_sync(self._module):
            yield

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module


@contextmanager
def _closure_first(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Make ``step(closure)`` call the closure and then ``step()``, inside the block.

    Lightning trains inside a closure. For optimizers that call it once the result is the same, but
    updates can be deferred into the next forward pass only after a ``step()`` without a closure.
    """
    step = optimizer.step

    def call(closure: Callable[[], Any] | None = None, **keywords: Any) -> Any:
        result = None if closure is None else closure()
        step(**keywords)
        return result

    with replaced(optimizer, "step", call):
        yield
