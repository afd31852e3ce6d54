"""Measure the cost of the hooks, on a model that computes next to nothing."""

from collections.abc import Callable
from itertools import cycle, islice

import torch

from bytelane.measure.attribution import divide, mark_cost
from bytelane.measure.observation_points import every_call
from bytelane.measure.observe import Observer
from bytelane.measure.record import Clock, Recorder

# In this order a slow drift of the machine's speed cancels out.
OBSERVED = (True, False, False, True)
LAYERS = 16
TURNS = 20


def in_turns(observer: Observer, iterate: Callable[[], None], count: int) -> None:
    """Run ``count`` iterations with hooks and as many without, in turns."""
    for observed in islice(cycle(OBSERVED), 2 * count):
        if observed:
            with observer:
                iterate()
        else:
            iterate()


def calibrate(clock: Clock, device: torch.device | str = "cpu") -> float:
    """Return the cost of a mark, in seconds. Draws no random numbers."""
    model = torch.nn.Sequential(*(_Scale(device) for _ in range(LAYERS)))
    recorder = Recorder(clock)
    batch = torch.ones(1, device=device)

    def iterate() -> None:
        recorder.begin()
        value = model(batch)
        recorder.mark("backward")
        value.backward()
        recorder.end()
        model.zero_grad()

    in_turns(Observer(every_call(model), recorder), iterate, TURNS)
    found = recorder.iterations()
    observed = [divide(one.marks) for one in found if one.calls]
    return mark_cost(observed, [one.seconds for one in found if not one.calls])


class _Scale(torch.nn.Module):
    def __init__(self, device: torch.device | str) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight
