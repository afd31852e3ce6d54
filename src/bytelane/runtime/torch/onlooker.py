"""See who looks: the first use of a parameter that is not up to date brings it up to date.

Between backward and the end of the next forward, parameters and gradients may be behind. Modules
have gates of their own; this catches everybody else: ``p.grad`` for clipping, ``p.data``, a weight
used functionally in another module, ``torch.save``, ``deepcopy``. It sees what goes through Python
in this thread. It does not see parameters handed to C++ or to another thread.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Settle = Callable[[list[torch.Tensor]], None]


class Onlooker(TorchFunctionMode):
    """Calls ``settle`` with the watched tensors among a torch function's arguments.

    ``watched`` is live: it holds the ids of the tensors that are behind at the moment. The mode is
    entered once and stays: modes are a stack, and whatever a user enters later is left before ours.
    """

    def __init__(self, watched: Mapping[int, Any], settle: Settle) -> None:
        super().__init__()
        self._watched = watched
        # Weak: the stack of modes must not keep a model alive that its user has dropped.
        self._settle = weakref.WeakMethod(settle)
        self.paused = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self._watched and not self.paused:
            seen = list(_among((*args, *(kwargs or {}).values()), self._watched))
            settle = self._settle()
            if seen and settle is not None:
                settle(seen)
        return func(*args, **(kwargs or {}))

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Do not react to what happens meanwhile."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


def _among(values: Iterable[Any], watched: Mapping[int, Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if id(value) in watched:
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _among(value, watched)
