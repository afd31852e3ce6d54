"""Follow a script that trains: which models it wraps, which optimizers it makes, when they step."""

import functools
import gc
import linecache
import sys
import time
import types
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bytelane.measure.find import Stop
from bytelane.measure.taps import replaced
from bytelane.tryout.trial import Line

PACKAGE = str(Path(__file__).parent)


class Follower:
    """Ends the script after so many steps of the optimizer that steps first.

    Optimizers are followed by a ``step`` of their own, not by torch's hooks on steps: Bytelane
    would have to wait for everything before it calls a hook of somebody else.
    """

    def __init__(self, iterations: int, tell: Callable[[int], None] | None = None) -> None:
        self.wrappers: list[DistributedDataParallel] = []
        self.wrapped_at: list[Line] = []
        self._step_ends_s: list[float] = []
        self._iterations = iterations
        self._tell = tell
        self._optimizers: list[weakref.ref[Optimizer]] = []
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
        """A model was wrapped."""
        self.wrappers.append(wrapper)
        self.wrapped_at.append(_line_outside())

    def optimizers_of(self, module: torch.nn.Module) -> list[Optimizer]:
        """Return those that hold a parameter of this module, in the order they were made."""
        gc.collect()  # some may have been thrown away
        own = {id(parameter) for parameter in module.parameters()}
        living = [one for known in self._optimizers if (one := known()) is not None]
        return [one for one in living if not own.isdisjoint(_identities(one))]

    def _follow(self, optimizer: Optimizer) -> None:
        self._optimizers.append(weakref.ref(optimizer))
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
            raise Stop  # somebody has caught the first one

    def _after_step(self, optimizer: Optimizer) -> None:
        if self._clock is None:
            self._clock = optimizer
        if optimizer is self._clock:
            self._step_ends_s.append(time.perf_counter())
            if self._tell:
                self._tell(self.steps)
            self._before_step()


def _identities(optimizer: Optimizer) -> list[int]:
    return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]


def _line_outside() -> Line:
    """Return the line of the script, or of its library, that has led here."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    file, number = frame.f_code.co_filename, frame.f_lineno
    return Line(file, number, linecache.getline(file, number).strip())
