"""Measure the link as training will use it: through Bytelane's own engine and transport.

Part of an operation's cost beside its bytes is Bytelane's own: launching it, noticing its end,
launching the next. A plan with many small pieces pays that often, so the link's overhead includes
it.
"""

import functools
import time

import torch
import torch.distributed as dist
from msgspec.structs import replace

from bytelane.cluster import Link
from bytelane.core import CreditWindow, Operation, Plan, SubTask
from bytelane.core import in_halves as halves
from bytelane.measure import measure_link
from bytelane.measure.network import FEW_SIZES, lead_in, messages_in_a_row
from bytelane.runtime.sync import Contribution, Engine
from bytelane.runtime.torch.carrier import carrier_of

TIMEOUT_S = 120.0
FLOAT_BYTES = 4


def probe(group: dist.ProcessGroup, *, in_halves: bool = False, budget_s: float = 1.0) -> Link:
    """Fit a link to the times of rows of operations; every rank of the group must call this.

    ``in_halves``: reduce-scatter all operations of a row, then all-gather them.
    """
    make_row = functools.cache(functools.partial(_Row, in_halves=in_halves))
    # One buffer for all rows: a model that fills the machine's memory may be in training.
    memory = torch.zeros(max(size * messages_in_a_row(size) for size in FEW_SIZES) // FLOAT_BYTES)

    def send(group: dist.ProcessGroup, size: int, messages: int, in_flight: int) -> float:
        row = make_row(group, size, messages, in_flight)
        return row.send(memory[: size * messages // FLOAT_BYTES])

    link, _ = measure_link(group, send, budget_s)
    # The fit counts one latency per message; in halves there are two.
    return replace(link, latency_s=link.latency_s / 2) if in_halves else link


class _Row:
    """Operations of one size, one after the other."""

    def __init__(
        self, group: dist.ProcessGroup, size: int, messages: int, in_flight: int, *, in_halves: bool
    ) -> None:
        total = size * messages
        operations = tuple(
            Operation((SubTask(0, start, start + size),)) for start in range(0, total, size)
        )
        window = CreditWindow(size * in_flight)
        plan = Plan("row", (total,), operations, window, barrier=True)
        if in_halves:
            plan = replace(plan, stages=halves(range(messages)))
        self._group = group
        self._transport = carrier_of(plan)(plan, [torch.float32], [group], ["everything"])
        self._engine = Engine.of_plan(plan, self._transport, ("everything",), timeout_s=TIMEOUT_S)

    def send(self, everything: torch.Tensor) -> float:
        """Send all operations of the row; return the seconds that they took."""
        lead_in(self._group)
        began = time.perf_counter()
        self._engine.begin_iteration()
        self._transport.begin_round(0, 0)
        self._transport.take([Contribution(0, everything)])
        self._engine.notify_ready(0)
        self._engine.wait([0])
        took_s = time.perf_counter() - began
        self._transport.forget(0)
        return took_s
