"""Clocks of the device that computes: the host's, or CUDA events."""

import time
from collections.abc import Sequence

import torch

from bytelane.errors import NotSupported
from bytelane.measure.record import Clock


class HostClock:
    """For devices on which a call returns when its work is done."""

    moment = staticmethod(time.perf_counter)

    def seconds(self, moments: Sequence[float]) -> list[float]:
        return list(moments)


class CudaClock:
    """CUDA events in the stream, read only at the end, so that the GPU never waits."""

    def moment(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, moments: Sequence[torch.cuda.Event]) -> list[float]:
        torch.cuda.synchronize()
        return [moments[0].elapsed_time(moment) / 1e3 for moment in moments]


def clock_for(model: torch.nn.Module) -> Clock:
    """Choose the clock by the one device that holds the model."""
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        raise NotSupported(
            f"the model lies on {', '.join(sorted(map(str, devices)))}; "
            "only one device can be profiled"
        )
    kind = devices.pop().type
    if kind == "cuda":
        return CudaClock()
    if kind != "cpu":
        raise NotSupported(f"a model on {kind!r} cannot be timed yet; use cpu or cuda")
    return HostClock()
