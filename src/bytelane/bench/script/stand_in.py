"""Replace DistributedDataParallel in a script by subclasses that synchronise otherwise.

All of them *are* DistributedDataParallel: it checks its arguments, compares models between ranks,
copies rank 0's weights, and answers ``module``, ``parameters()``, ``state_dict()`` and
``isinstance`` as ever. Only the synchronisation of gradients differs.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch.nn import parallel
from torch.nn.parallel import DistributedDataParallel

from bytelane.bench.script.follow import Follower
from bytelane.errors import NotSupported
from bytelane.foreign.torch import is_ignored_by_ddp, sync_ddp_buffers
from bytelane.measure.patches import replaced
from bytelane.runtime.torch.module_hooks import outside_compiled_code

MEBIBYTE = 2**20
# Options of DDP that Bytelane does not support.
FOREIGN = ("mixed_precision", "delay_all_reduce_named_params", "param_to_hook_all_reduce")


class Runtime(Protocol):
    """Synchronises the gradients: :mod:`bytelane`, perhaps with knobs."""

    def prepare(self, model: torch.nn.Module, optimizer: Any) -> object: ...
    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[None]: ...
    def join(self, model: torch.nn.Module) -> AbstractContextManager[None]: ...


class Followed(DistributedDataParallel):
    """DDP that registers with a follower; perhaps with other buckets than the script asks for."""

    follower: ClassVar[Follower]
    bucket_bytes: ClassVar[int | None] = None

    def __init__(self, module: torch.nn.Module, *arguments: Any, **keywords: Any) -> None:
        if self.bucket_bytes is not None:
            keywords["bucket_cap_mb"] = self.bucket_bytes / MEBIBYTE
        super().__init__(module, *arguments, **keywords)
        self.follower.note(self)


class Silent(Followed):
    """DDP without synchronisation: ranks train alone, and only the script itself sends."""

    _syncs = True

    # A property, since DDP's own no_sync() and many a script switch it.
    @property
    def require_backward_grad_sync(self) -> bool:
        return self._syncs

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted: bool) -> None:
        if wanted != self._syncs:
            self._syncs = wanted
            self._switched()

    def _switched(self) -> None:
        """Called when the script switches synchronisation on or off."""

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the module, without DDP's preparation for sending gradients."""
        return self.module(*inputs, **keywords)


class Prepared(Silent):
    """The module inside is prepared by Bytelane, before it is first used in training.

    Not earlier: until then the script may still make the optimizer, or give it more groups.
    """

    runtime: ClassVar[Runtime]
    _is_prepared = False

    def __init__(self, module: torch.nn.Module, *arguments: Any, **keywords: Any) -> None:
        self._refuse_foreign(module, keywords)
        super().__init__(module, *arguments, **keywords)
        if self.process_group is not dist.group.WORLD:
            raise NotSupported("the model is wrapped for some of the ranks only; use all of them")
        self._pauses = ExitStack()

    @staticmethod
    def _refuse_foreign(module: torch.nn.Module, keywords: dict[str, Any]) -> None:
        given = [name for name in FOREIGN if keywords.get(name) is not None]
        if given:
            raise NotSupported(f"DistributedDataParallel's {given[0]} is not supported")
        if is_ignored_by_ddp(module):
            raise NotSupported("parameters that DistributedDataParallel ignores are not supported")

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Prepare the module if it is about to be trained, and call it."""
        if torch.is_grad_enabled():
            self._ensure_prepared()
            self.require_forward_param_sync = self._syncs
        else:
            sync_ddp_buffers(self)  # DDP does so in evaluation, too; in training Bytelane does it
        return super().forward(*inputs, **keywords)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.module.zero_grad(set_to_none)  # which Bytelane has hooked

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> AbstractContextManager[None]:
        """Let ranks have different numbers of batches."""
        if not enable:
            return nullcontext()
        if not divide_by_initial_world_size or throw_on_early_termination:
            raise NotSupported("join() is supported as it is, without options")
        self._ensure_prepared()
        return self.runtime.join(self.module)

    def register_comm_hook(self, state: object, hook: object) -> NoReturn:
        raise NotSupported("communication hooks are DistributedDataParallel's own")

    @outside_compiled_code
    def _ensure_prepared(self) -> None:
        if self._is_prepared:
            return
        optimizers = self.follower.optimizers_of(self.module)
        if not optimizers and not self.training:
            return  # no optimizer uses the gradients
        if not optimizers:
            raise NotSupported("the model is used in training before there is an optimizer for it")
        self.runtime.prepare(self.module, optimizers[0] if len(optimizers) == 1 else optimizers)
        self._is_prepared = True
        if not self._syncs:
            self._switched()

    def _switched(self) -> None:
        if self._is_prepared and self._syncs:
            self._pauses.close()
        elif self._is_prepared:
            self._pauses.enter_context(self.runtime.no_sync(self.module))


@contextmanager
def in_place_of_ddp(kind: type[Followed], **attributes: Any) -> Iterator[None]:
    """Replace DDP in ``torch.nn.parallel`` by a class of that kind, inside the block."""
    name, home = DistributedDataParallel.__name__, parallel.distributed
    # Its name and module are DDP's, so that pickle finds it, too.
    ours = type(name, (kind,), {**attributes, "__module__": home.__name__})
    with replaced(parallel, name, ours), replaced(home, name, ours):
        yield
