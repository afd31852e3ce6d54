"""The layouts in force on a parameter server: tables of operations, their sums and their outbox.

Ranks change to a new layout one after the other, and acknowledgements of the old one may still be
on their way; so a few layouts are in force at the same time. One is forgotten when all ranks have
gone on to a later one and all of its sums are acknowledged.
"""

from collections.abc import Sequence

from bytelane.runtime.ps.frames import Layout, Malformed, Row, decode_table
from bytelane.runtime.ps.outbox import Outbox
from bytelane.runtime.ps.round_sums import RoundSums

MOST_LAYOUTS = 8
MOST_CELLS = 2**20
"""Operations times ranks, for each of which a server keeps a few hundred bytes."""


class LiveLayout:
    """One layout: what its ranks have agreed on, and the state of its operations."""

    def __init__(self, header: Layout, table: bytes, rows: Sequence[Row], world: int) -> None:
        self.header = header
        self.table = table
        self.rows = rows
        self.sums = RoundSums(rows, world)
        self.outbox = Outbox(
            rows, world, header.credit_bytes, straggler_first=header.straggler_first
        )


class Layouts:
    """Layouts by their numbers, and which one each rank uses."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._live: dict[int, LiveLayout] = {}
        self._of_rank = [-1] * world

    def announce(self, rank: int, header: Layout, table: bytes) -> str | None:
        """Let a rank use a layout from now on; return a sentence if it cannot."""
        if header.number <= self._of_rank[rank]:
            return f"rank {rank} goes back to layout {header.number}"
        live = self._live.get(header.number)
        if live is None:
            rows = decode_table(table)
            if isinstance(rows, Malformed):
                return f"the layout of rank {rank} cannot be used: {rows.reason}"
            if len(rows) * self._world > MOST_CELLS:
                return (
                    f"{len(rows):,} operations for {self._world:,} ranks are too many; "
                    "use a larger partition, or more servers"
                )
            if len(self._live) >= MOST_LAYOUTS:
                return f"rank {rank} begins layout {header.number} while others use an earlier one"
            self._live[header.number] = LiveLayout(header, table, rows, self._world)
        elif live.header != header or live.table != table:
            return (
                f"rank {rank} has another layout than the ranks before it; all ranks must train "
                "the same model with the same policy and options"
            )
        self._of_rank[rank] = header.number
        self.forget_old()
        return None

    def of_push(self, rank: int, number: int) -> LiveLayout | None:
        """Return the layout if it is the one that the rank uses."""
        return self._live.get(number) if self._of_rank[rank] == number else None

    def of_acknowledgement(self, number: int) -> LiveLayout | None:
        """Return the layout, also an old one."""
        return self._live.get(number)

    def forget_old(self) -> None:
        """Forget layouts that nobody uses any more."""
        oldest = min(self._of_rank)
        for number in [n for n in self._live if n < oldest and self._live[n].sums.is_idle]:
            del self._live[number]
