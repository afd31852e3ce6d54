"""The table of cases: every way of training that a user meets, and what becomes of it.

The docs are made from the same decorators, by reading them as text, so their arguments are plain
literals: see docs/generators/cases.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cases.arms import Arm
from cases.compare import Values

Outcome = Literal["exact", "barrier", "rounded", "servers", "refused"]
"""Same weights as DDP; the same, but an iteration waits for all; up to rounding; the same with
parameter servers, and a sentence with all-reduce; a sentence."""

Run = Callable[..., Values]


@dataclass(frozen=True)
class Case:
    """One row of the table; ``ways`` are variants of it, which its function gets by name."""

    title: str
    outcome: Outcome
    why: str
    run: Run
    ways: tuple[str, ...]
    worlds: tuple[int, ...]
    says: str
    synchronises: bool
    probed: bool
    rounding: str


CASES: dict[str, Case] = {}


def case(
    title: str,
    outcome: Outcome,
    *,
    why: str,
    ways: tuple[str, ...] = (),
    worlds: tuple[int, ...] = (2, 4),
    says: str = "",
    synchronises: bool = True,
    probed: bool = True,
    rounding: str = "float32",
) -> Callable[[Run], Run]:
    """Put a function into the table.

    ``says`` is part of the sentence that is raised, or of the line that is printed. A case that
    does not ``synchronise`` gives the same result without other ranks. One that is not ``probed``
    does not tell whether ``step()`` waits: its ranks do not go through the same iterations.
    ``rounding`` is the coarsest dtype it computes in.
    """

    def keep(run: Run) -> Run:
        assert title not in CASES, title
        CASES[title] = Case(
            title, outcome, why, run, ways, worlds, says, synchronises, probed, rounding
        )
        return run

    return keep


def variants(world: int) -> list[tuple[str, str]]:
    """Return title and way of everything that runs on this many ranks."""
    return [
        (title, way)
        for title, entry in CASES.items()
        if world in entry.worlds
        for way in entry.ways or ("",)
    ]


def run(title: str, way: str, arm: Arm) -> Values:
    """Train one case by one arm."""
    entry = CASES[title]
    arguments: dict[str, Any] = {"way": way} if entry.ways else {}
    return entry.run(arm, **arguments)
