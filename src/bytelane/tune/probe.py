"""Measure the link as training will use it: through our own engine and transport.

What an operation costs beside its bytes is partly ours: launching it, hearing of its end, launching
the next. A plan with many small pieces pays that often, so it belongs into the link's overhead.
"""

import functools
import time

import torch
import torch.distributed as dist
from msgspec.structs import replace

from bytelane.cluster import Link
from bytelane.core import CreditWindow, Operation, Plan, SubTask
from bytelane.measure import measure_link
from bytelane.measure.network import FEW_SIZES, lead_in, messages_in_a_row
from bytelane.runtime.engine import Engine
from bytelane.runtime.torch.synchroniser import carrier_of
from bytelane.runtime.torch.transport import Gradient

TIMEOUT_S = 120.0
FLOAT_BYTES = 4


def probe(group: dist.ProcessGroup, *, in_halves: bool = False, budget_s: float = 1.0) -> Link:
    """Fit a link to rows of our own operations; every rank of the group must call this.

    ``in_halves``: all are reduce-scattered, then gathered, which is another way to send.
    """
    make_row = functools.cache(functools.partial(_Row, in_halves=in_halves))
    # One memory for all rows: a model that fills the machine may be in training.
    memory = torch.zeros(max(size * messages_in_a_row(size) for size in FEW_SIZES) // FLOAT_BYTES)

    def send(group: dist.ProcessGroup, size: int, messages: int, in_flight: int) -> float:
        row = make_row(group, size, messages, in_flight)
        return row.send(memory[: size * messages // FLOAT_BYTES])

    link, _ = measure_link(group, send, budget_s)
    # The fit counts one latency a message; in halves there are two.
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
        gathered = tuple(range(messages)) if in_halves else ()
        plan = Plan("row", (total,), operations, window, barrier=True, gather_order=gathered)
        self._group = group
        self._transport = carrier_of(plan)(plan, [torch.float32], [group], ["everything"])
        self._engine = Engine(
            plan, self._transport, tensor_names=("everything",), timeout_s=TIMEOUT_S
        )

    def send(self, everything: torch.Tensor) -> float:
        """Send all of them, and return the seconds that it took."""
        lead_in(self._group)
        began = time.perf_counter()
        self._engine.begin_iteration()
        self._transport.begin_round(0, 0)
        self._transport.take([Gradient(0, everything)])
        self._engine.notify_ready(0)
        self._engine.wait([0])
        took_s = time.perf_counter() - began
        self._transport.forget(0)
        return took_s
