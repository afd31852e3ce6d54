"""Profile an unedited training script, and end it after enough iterations.

The script runs in this process, as ``python script.py`` would run it. Once the model that it trains
is known, it is observed in every other pair of iterations. An iteration lasts from the end of
a step to the end of the next one.
"""

import contextlib
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bytelane.errors import InputError
from bytelane.measure.calibrate import OBSERVED, calibrate
from bytelane.measure.clock import clock_for
from bytelane.measure.loop import require_iterations, tensors_of
from bytelane.measure.observe import Observer
from bytelane.measure.patches import replaced, tapped
from bytelane.measure.record import Recorder
from bytelane.measure.result import Profile, make_profile
from bytelane.measure.script_discovery import Discovered, Finder, Stop

Say = Callable[[str], None]
# The fewest iterations, with hooks and without, that make a profile.
LEAST = 3


class ScriptFailed(Exception):
    """The script ended with an error of its own: its traceback and its exit code."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


def profile_script(
    script: Path, arguments: Sequence[str], *, iterations: int, warmup: int, say: Say
) -> Profile:
    """Run a script until ``iterations`` were observed, and as many ran without hooks."""
    require_iterations(iterations, warmup)
    if not script.is_file():
        raise InputError(f"{script}: there is no such file")
    watch = _Watch(iterations, warmup, say)
    with watch, Finder(watch.begin):
        try:
            run_script(script, arguments)
        except Stop as end:
            if end.reason is not None:
                raise end.reason from None
        except ScriptFailed:
            if not watch.has_enough:
                raise
    return watch.profile(script)


class _Watch:
    """Follows the iterations of the model that the script trains."""

    def __init__(self, iterations: int, warmup: int, say: Say) -> None:
        self._turns = chain(repeat(None, warmup), islice(cycle(OBSERVED), 2 * iterations))
        self._wanted = warmup + 2 * iterations
        self._done = -1
        self._warmup = warmup
        self._say = say
        self._hooks = contextlib.ExitStack()
        self._trained: Discovered | None = None

    def __enter__(self) -> "_Watch":
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    @property
    def has_enough(self) -> bool:
        return self._done == self._wanted

    def begin(self, trained: Discovered) -> None:
        """Observe the model that was found, from the end of this iteration on."""
        self._trained = trained
        device = next(trained.model.parameters()).device
        clock = clock_for(trained.model)
        self._mark_s = calibrate(clock, device)
        self._recorder = Recorder(clock)
        self._observer = Observer(trained.gates, self._recorder)
        self._hooks.callback(self._observer.detach)
        self._hooks.enter_context(tapped(self._recorder))
        self._hooks.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        self._hooks.callback(register_optimizer_step_post_hook(self._after_step).remove)
        count = sum(parameter.numel() for parameter in trained.model.parameters())
        names = " and ".join(type(root).__name__ for root in trained.gates.roots)
        self._say(
            f"found {names} with {count:,} parameters and {type(trained.last).__name__}; "
            f"{self._wanted} iterations follow"
        )

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.has_enough:
            raise Stop  # the script has caught the first one
        self._recorder.mark("update")

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._recorder.mark("other")
        if self._trained is not None and optimizer is self._trained.last:
            self._next_iteration()

    def _next_iteration(self) -> None:
        if self._done >= 0:
            self._recorder.end()
        self._observer.detach()
        self._done += 1
        if self._done == self._warmup:
            self._recorder.forget()
        elif self._done % 10 == 0 and self._done:
            self._say(f"{self._done} of {self._wanted} iterations")
        if self.has_enough:
            raise Stop
        if next(self._turns):
            self._observer.attach()
        self._recorder.begin()

    def profile(self, script: Path) -> Profile:
        """Make a profile of the recorded iterations."""
        if self._trained is None:
            raise InputError(
                f"{script} ended without training: no optimizer made two steps in this process"
            )
        found = self._recorder.iterations() if self._done > self._warmup else []
        observed = sum(bool(one.calls) for one in found)
        if min(observed, len(found) - observed) < LEAST:
            raise InputError(
                f"{script} ended after {max(0, self._done)} iterations, but at least "
                f"{self._warmup + 2 * LEAST} are needed; let it train longer"
            )
        notes = []
        if not self.has_enough:
            notes.append(f"the script ended after {self._done} of {self._wanted} iterations")
        tensors = tensors_of(self._trained.gates)
        return make_profile(script.stem, found, tensors, self._mark_s, notes)


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run a script as ``python script.py`` does."""
    with (
        replaced(sys, "argv", [str(script), *arguments]),
        replaced(sys, "path", [str(script.resolve().parent), *sys.path]),
    ):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                number = end.code if isinstance(end.code, int) else None
                raise ScriptFailed(*(("", number) if number else (f"{end.code}\n", 1))) from None
        except Exception as error:
            raise ScriptFailed(_own_traceback(error, script), 1) from None


def _own_traceback(error: Exception, script: Path) -> str:
    """Format the traceback as if Python had run the script directly."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
