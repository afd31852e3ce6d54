"""Follow a script that trains: which models it wraps, which optimizers it makes, when they step."""

import functools
import gc
import linecache
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bytelane.bench.script.trial import Line, Wrapped
from bytelane.measure.patches import replaced
from bytelane.measure.script_discovery import Stop

# Folders whose lines are not the script's.
OURS_AND_TORCHS = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


class Follower:
    """Ends the script after so many steps of the optimizer that steps first.

    Optimizers are followed by replacing ``step``, not by torch's step hooks: Bytelane would have to
    settle everything before it calls a foreign hook.
    """

    def __init__(self, iterations: int, tell: Callable[[int], None] | None = None) -> None:
        self.wrappers: list[DistributedDataParallel] = []
        self.wrapped_at: list[Line] = []
        self._step_ends_s: list[float] = []
        self._iterations = iterations
        self._tell = tell
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._made_at: dict[int, list[Line]] = {}
        self._stepped: dict[int, tuple[set[int], list[Line]]] = {}
        """Optimizer -> the parameters it steps, and the lines that have led to its making."""
        self._clock: Optimizer | None = None
        self._patches = ExitStack()

    def __enter__(self) -> "Follower":
        make = Optimizer.__init__

        @functools.wraps(make)
        def make_and_follow(optimizer: Optimizer, *arguments: Any, **keywords: Any) -> None:
            make(optimizer, *arguments, **keywords)
            self._follow(optimizer)

        self._patches.enter_context(replaced(Optimizer, "__init__", make_and_follow))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    @property
    def steps(self) -> int:
        return len(self._step_ends_s)

    def steady_s(self) -> tuple[float, ...]:
        """Return the iterations of the second half, each from the end of a step to the next."""
        return tuple(b - a for a, b in pairwise(self._step_ends_s[self.steps // 2 :]))

    def note(self, wrapper: DistributedDataParallel) -> None:
        """Remember a model that was wrapped, and where."""
        self.wrappers.append(wrapper)
        self.wrapped_at.append(next(_lines_outside()))

    def wrapped(self) -> tuple[Wrapped, ...]:
        """Return where models were wrapped, and where the optimizers that step them were made."""
        return tuple(
            Wrapped(at, tuple(self._made_beside(at, wrapper)))
            for wrapper, at in zip(self.wrappers, self.wrapped_at, strict=True)
        )

    def _made_beside(self, at: Line, wrapper: DistributedDataParallel) -> Iterator[Line]:
        own = {id(parameter) for parameter in wrapper.module.parameters()}
        for parameters, lines in self._stepped.values():
            beside = [line for line in lines if line.file == at.file]
            if lines and not own.isdisjoint(parameters):
                yield (beside or lines)[0]

    def optimizers_of(self, module: torch.nn.Module) -> list[Optimizer]:
        """Return the optimizers with a parameter of this module, in the order they were made."""
        gc.collect()  # some may have been thrown away
        own = {id(parameter) for parameter in module.parameters()}
        living = [one for known in self._optimizers if (one := known()) is not None]
        return [one for one in living if not own.isdisjoint(_identities(one))]

    def _follow(self, optimizer: Optimizer) -> None:
        self._optimizers.append(weakref.ref(optimizer))
        self._made_at[id(optimizer)] = list(_lines_outside())
        follower = self

        @functools.wraps(type(optimizer).step)
        def step(self: Optimizer, *arguments: Any, **keywords: Any) -> Any:
            follower._before_step()
            result = type(self).step(self, *arguments, **keywords)
            follower._after_step(self)
            return result

        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]

    def _before_step(self) -> None:
        if self.steps == self._iterations:
            raise Stop  # the script has caught the first one

    def _after_step(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._stepped:
            made_at = self._made_at.get(id(optimizer), [])  # a copy is not made by __init__
            self._stepped[id(optimizer)] = set(_identities(optimizer)), made_at
        if self._clock is None:
            self._clock = optimizer
        if optimizer is self._clock:
            self._step_ends_s.append(time.perf_counter())
            if self._tell:
                self._tell(self.steps)
            self._before_step()


def _identities(optimizer: Optimizer) -> list[int]:
    return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]


def _lines_outside() -> Iterator[Line]:
    """Yield the lines of the script and its libraries on the call stack, the innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame:
        file, number = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith(OURS_AND_TORCHS):
            yield Line(file, number, linecache.getline(file, number).strip())
        frame = frame.f_back
