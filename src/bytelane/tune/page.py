"""At the end of a run: what was done, what it was worth, and what more could be had."""

from bytelane.terminal import announce
from bytelane.tune.search import Choice
from bytelane.units import format_seconds


def print_page(
    choice: Choice | None,
    iteration_s: float | None,
    busy_s: float | None,
    replanned: str | None = None,
) -> None:
    """Print the page, if there is anything to tell."""
    if choice is not None and iteration_s is not None:
        told = lines(choice, iteration_s, busy_s, replanned)
        announce("\n".join(["how it went", *told]))


def lines(
    choice: Choice, iteration_s: float, busy_s: float | None, replanned: str | None = None
) -> list[str]:
    """Return a line for each number; ``replanned`` is what a user has asked for since."""
    predicted = f"predicted {format_seconds(choice.taken.iteration_s)}"
    done = choice.taken.name
    if replanned is not None:
        predicted = f"{predicted} for {done}"
        done = f"policy {replanned}, as replan() has asked, instead of {done}"
    rows = [
        ("iteration", iteration_s, predicted),
        ("computing alone", choice.compute_s, "measured on the slowest rank"),
        ("communication alone", choice.communication_s, "predicted from the measured link"),
        ("lower bound", choice.bound_s, "the longer of the two"),
        ("plain buckets", choice.plain.iteration_s, f"predicted, {choice.plain.name}"),
        ("scheduled", choice.scheduled.iteration_s, f"predicted, {choice.scheduled.name}"),
    ]
    if busy_s is not None:
        idle = max(0.0, 1 - busy_s / iteration_s)
        rows.append(("link idle", iteration_s - busy_s, f"{100 * idle:.0f} % of an iteration"))
    width = max(len(name) for name, _, _ in rows)
    table = [
        f"  {name:<{width}}  {format_seconds(seconds):>9}  {note}" for name, seconds, note in rows
    ]
    return [*table, f"  done: {done}"]
