"""The summary at the end of a run: times measured and predicted, the bound, the plan taken."""

from bytelane.tune.search import Choice
from bytelane.units import NOISE, format_seconds, is_below


def lines(
    choice: Choice, iteration_s: float, busy_s: float | None, replanned: str | None = None
) -> list[str]:
    """Return a line for each number; ``replanned`` is the policy that replan() has asked for."""
    predicted = f"predicted {format_seconds(choice.taken.iteration_s)}"
    done = choice.taken.name
    if replanned is not None:
        predicted = f"{predicted} for {done}"
        done = f"policy {replanned}, as replan() has asked, instead of {done}"
    seconds = [
        ("iteration", iteration_s, predicted),
        ("computing alone", choice.compute_s, "measured on the slowest rank"),
        ("communication alone", choice.communication_s, "predicted from the measured link"),
        ("lower bound", choice.bound_s, _about_the_bound(iteration_s, choice.bound_s)),
        ("plain buckets", choice.plain.iteration_s, f"predicted, {choice.plain.name}"),
        ("scheduled", choice.scheduled.iteration_s, f"predicted, {choice.scheduled.name}"),
    ]
    rows = [(name, format_seconds(value), note) for name, value, note in seconds]
    if busy_s is not None:
        rows.append(("link idle", *_idle(iteration_s, busy_s)))
    width = max(len(name) for name, _, _ in rows)
    table = [f"  {name:<{width}}  {value:>9}  {note}" for name, value, note in rows]
    return [*table, f"  done: {done}"]


def _about_the_bound(iteration_s: float, bound_s: float) -> str:
    note = "the longer of the two"
    if is_below(iteration_s, bound_s):
        note += f"; an iteration was measured to take less: {NOISE}"
    return note


def _idle(iteration_s: float, busy_s: float) -> tuple[str, str]:
    """Return how long the link was idle, and a note."""
    if busy_s > iteration_s:
        busy, iteration = format_seconds(busy_s), format_seconds(iteration_s)
        return "not known", f"it was busy for {busy} in an iteration of {iteration}: {NOISE}"
    share = 1 - busy_s / iteration_s
    return format_seconds(iteration_s - busy_s), f"{100 * share:.0f} % of an iteration"
