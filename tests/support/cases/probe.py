"""Find out, without a clock, whether ``step()`` waits for the other ranks.

Between forward and backward the last rank pauses until the first has begun the next iteration. If
the first can, then its ``step()`` has returned although no gradient can have arrived. If it cannot,
the last rank gives up, and both go on.
"""

from datetime import timedelta

import torch.distributed as dist

# The plan has taken over by then.
PROBED_STEP = 6


class Probe:
    """One arm's probe; the key must be a new one for every run."""

    def __init__(self, rank: int, world: int, key: str, patience_s: float) -> None:
        self._first = rank == 0
        self._last = rank == world - 1
        self._key = f"probe {key}"
        self._patience = timedelta(seconds=patience_s)
        self._store = dist.distributed_c10d._get_default_store()
        self.waits: bool | None = None
        """Whether step() waits; None on other ranks than the last, or if it was not found out."""

    def begin(self, step: int) -> None:
        """An iteration begins; further batches of it are numbered in hundreds."""
        if self._first and step % 100 == PROBED_STEP + 1:
            self._store.set(self._key, "yes")

    def pause(self, step: int) -> None:
        """The forward pass is over, also if it is not the only one."""
        if self._last and step == PROBED_STEP and self.waits is None:
            self.waits = not self._first_goes_on()

    def _first_goes_on(self) -> bool:
        try:
            self._store.wait([self._key], self._patience)
        except RuntimeError:  # that is what a store says when time is up
            return False
        return True
