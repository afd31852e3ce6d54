"""Uneven inputs (``join``): ranks without data take part in the others' rounds, adding nothing.

Before every training forward the ranks that still have data announce it, with their step and round.
The others announce that they have none, and add nothing to the round that follows. In the end all
ranks copy the weights of the highest rank among those that had data last, as DDP's ``join`` does.
"""

import torch
import torch.distributed as dist

from bytelane.runtime.torch.control import Control

NOBODY = -1


class UnevenInputs:
    """One rank's view of which ranks still have data."""

    def __init__(self, control: Control) -> None:
        self.authority = NOBODY
        """The highest rank that has data: its buffers and, in the end, its weights count."""
        self._control = control

    def announce(self, step: int, number: int, buffers_are_due: bool) -> None:
        """Announce that this rank has data, and is about to do this round of this step."""
        self._agree([self._control.rank, step, number, int(buffers_are_due)])

    def hear(self) -> tuple[int, int, bool] | None:
        """Announce that this rank has no data left; return the others' next round, if any."""
        last = self.authority
        step, number, buffers_are_due = self._agree([NOBODY, 0, 0, 0])
        if self.authority == NOBODY:
            self.authority = last
            return None
        return step, number, bool(buffers_are_due)

    def _agree(self, mine: list[int]) -> list[int]:
        numbers = torch.tensor(mine)
        self._control.all_reduce(numbers, dist.ReduceOp.MAX)
        self.authority, *rest = numbers.tolist()
        return rest
