"""Integrate with Accelerate: ``BytelaneAccelerator()`` instead of ``Accelerator()``."""

import weakref
from contextlib import AbstractContextManager
from typing import Any

import bytelane
from bytelane.errors import MissingExtra, NotSupported

try:
    import torch
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.utils import DDPCommunicationHookType
except ImportError:
    raise MissingExtra(
        "this needs Accelerate; install it with: pip install 'bytelane[accelerate]'"
    ) from None

NO_HOOK = DDPCommunicationHookType.NO


class BytelaneAccelerator(Accelerator):  # type: ignore[misc]
    """An Accelerator that wraps no model in DDP: Bytelane synchronises the gradients.

    ``knobs`` go to :func:`bytelane.prepare`: a policy, its partition. Options are Accelerator's.
    A model is prepared as soon as ``prepare`` has been given both it and its optimizer.
    """

    def __init__(self, *, knobs: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        if self.ddp_handler is not None:
            _refuse_other_results(self.ddp_handler)
        self._knobs = knobs or {}
        self._prepared: weakref.WeakKeyDictionary[torch.nn.Module, list[int]] = (
            weakref.WeakKeyDictionary()
        )
        """Models, and the identities of the optimizers that were prepared with them."""
        self._waiting: list[torch.nn.Module] = []
        """Models whose optimizers have not been prepared yet."""
        # Weak: Accelerator holds them until free_memory(). A dictionary keeps their order.
        self._steppers: weakref.WeakKeyDictionary[AcceleratedOptimizer, None] = (
            weakref.WeakKeyDictionary()
        )

    def prepare(self, *objects: Any, device_placement: list[bool] | None = None) -> Any:
        found = super().prepare(*objects, device_placement=device_placement)
        self._match()
        return found

    def prepare_model(
        self,
        model: torch.nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> torch.nn.Module:
        """Prepare a model as Accelerator does, but do not wrap it."""
        found: torch.nn.Module = super().prepare_model(
            model, device_placement, evaluation_mode=True
        )
        trained = any(parameter.requires_grad for parameter in found.parameters())
        if trained and not evaluation_mode and self.num_processes > 1:
            self._waiting.append(found)
        return found

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Prepare an optimizer as Accelerator does, and remember it."""
        found = super().prepare_optimizer(optimizer, device_placement)
        self._steppers[found] = None
        return found

    def backward(self, loss: torch.Tensor, **keywords: Any) -> None:
        if self._waiting:
            raise NotSupported("a model is trained without its optimizer; give prepare() both")
        super().backward(loss, **keywords)

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Accumulate gradients on this rank only; accumulate() calls this."""
        return bytelane.no_sync(self.unwrap_model(model))

    def _match(self) -> None:
        """Call bytelane.prepare for the models whose optimizers are known."""
        for model in list(self._waiting):
            own = {id(parameter) for parameter in model.parameters()}
            optimizers = [
                one.optimizer
                for one in list(self._steppers)
                if not own.isdisjoint(_identities(one))
            ]
            if not optimizers:
                continue
            given = [id(one) for one in optimizers]
            if self._prepared.get(model) != given:  # a trainer may prepare both once more
                bytelane.prepare(model, optimizers, **self._knobs)
                self._prepared[model] = given
            self._waiting.remove(model)


def _refuse_other_results(handler: DistributedDataParallelKwargs) -> None:
    """Refuse DDP options that would change weights or buffers; ignore others, such as bucket sizes.

    Transformers' Trainer always passes some.
    """
    if handler.comm_hook != NO_HOOK or handler.comm_wrapper != NO_HOOK:
        raise NotSupported("communication hooks are DistributedDataParallel's own; leave them out")
    if not handler.broadcast_buffers:
        raise NotSupported("broadcast_buffers=False is not supported; buffers are rank 0's")


def _identities(optimizer: torch.optim.Optimizer) -> list[int]:
    return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
