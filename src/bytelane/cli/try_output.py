"""Print the result of ``bytelane try``: a table, a verdict, lines to change; JSON; pictures."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bytelane.cli.output import print_table
from bytelane.terminal import show

if TYPE_CHECKING:
    from bytelane.bench import Cell
    from bytelane.bench.script import Arm, Difference, Outcome, Place

# DDP's default bucket size; its first bucket is smaller.
USUAL_BUCKET_BYTES = 25 * 2**20


def print_outcome(outcome: "Outcome", place: "Place") -> None:
    """Print times, verdict, comparison of weights and the lines to change."""
    from bytelane.units import format_bytes, format_seconds

    trial = outcome.trial
    counted = len(outcome.cells[0].times_s[0])
    show(f"{trial.script}: {format_bytes(outcome.gradient_bytes)} of gradients, {place.title}")
    show(
        f"median of {trial.repetitions} x {counted} iterations, after as many warm-up iterations\n"
    )
    titles = ("", "iteration", "spread", "of bound")
    print_table(titles, [_row(cell, outcome) for cell in outcome.cells])
    show(
        f"bound: {format_seconds(outcome.bound_s)}, the longer of compute and communication alone\n"
    )
    for line in (*_verdict(outcome), *_weights(outcome), *outcome.said, *_adopt(outcome)):
        show(line)


def _row(cell: "Cell[Arm]", outcome: "Outcome") -> tuple[str, ...]:
    from bytelane.units import format_seconds

    spread = f"{cell.spread:.1%}" + ("" if cell.is_quiet else " !")
    return (
        cell.contender.name,
        format_seconds(cell.iteration_s),
        spread if len(cell.times_s) > 1 else "",
        f"{cell.iteration_s / outcome.bound_s:.2f}x",
    )


def _verdict(outcome: "Outcome") -> Iterator[str]:
    from bytelane.units import NOISE

    best, speedup = outcome.best_ddp, outcome.speedup
    faster = f"{speedup:.2f}x faster" if speedup >= 1 else f"{1 / speedup:.2f}x SLOWER"
    compared = f"{faster} than" if f"{speedup:.2f}" != "1.00" else "as fast as"
    most = best.iteration_s / outcome.bound_s
    yield f"Bytelane is {compared} {best.contender.name}; at the bound it would be {most:.2f}x"
    if round(most, 2) < 1:
        name = best.contender.name
        yield f"which cannot be: the machine was disturbed while {name} was not running"
    elif round(speedup, 2) > round(most, 2):
        yield f"Bytelane was measured to be below the bound, which cannot be: {NOISE}"
    if outcome.trial.repetitions > 1 and not outcome.is_clear:
        yield "not every repetition agrees: the difference is not clear of the noise"
    if not all(cell.is_quiet for cell in outcome.cells):
        yield "! repetitions differ by more than 3 %: the machine was not quiet enough"
    if not outcome.trial.buckets and outcome.gradient_bytes < 2 * USUAL_BUCKET_BYTES:
        yield (
            "DDP's buckets of 25 MiB hold half of this model or more; smaller ones may help it, "
            "too: --buckets 1MiB,4MiB"
        )


def _weights(outcome: "Outcome") -> Iterator[str]:
    if not outcome.ranks_agree:
        yield "weights: the ranks have ended with different parameters under Bytelane"
    if outcome.weights is None:
        yield f"weights: not compared: {outcome.not_compared}"
    elif not outcome.weights.largest:
        yield f"weights: equal to the last bit after {outcome.steps} steps"
        yield from _kernels(outcome)
    elif outcome.own is None:
        yield f"weights: {_apart(outcome.weights)}; --repetitions 2 tells whether DDP does so, too"
    elif outcome.own.largest:
        yield (
            f"weights: the script is not deterministic: two runs under DDP {_apart(outcome.own)}, "
            f"DDP and Bytelane {_apart(outcome.weights)}"
        )
    else:
        many = "; on more than two workers sums are rounded in another order"
        yield (
            f"weights: DDP repeats itself exactly, DDP and Bytelane {_apart(outcome.weights)}"
            f"{many if outcome.workers > 2 else ''}"
        )
        yield from _kernels(outcome)


def _kernels(outcome: "Outcome") -> Iterator[str]:
    """Say which runs were compared where code is compiled: other graphs are other kernels."""
    if not outcome.has_same_kernels:
        yield (
            "the graphs are split at Bytelane's hooks, so kernels differ from DDP's, and may round "
            "differently; compile the model before it is wrapped"
        )
    elif outcome.rival.whole_graphs:
        yield (
            "compared with a run of DDP that leaves compiled graphs whole "
            "(torch._dynamo.config.optimize_ddp=False): split at its buckets they are other kernels"
        )


def _apart(found: "Difference") -> str:
    return f"differ by up to {found.largest:.3g} (in {found.name})"


def _adopt(outcome: "Outcome") -> Iterator[str]:
    from bytelane.bench.script.lines_to_change import advise

    for wrapped in dict.fromkeys(outcome.wrapped):
        yield from ("", *advise(wrapped))


def document(outcome: "Outcome", place: "Place") -> dict[str, Any]:
    """Return everything as one JSON object, units in the keys."""
    trial = outcome.trial
    return {
        "script": trial.script,
        "arguments": trial.arguments,
        "place": place.title,
        "workers": outcome.workers,
        "gradient_bytes": outcome.gradient_bytes,
        "steps": outcome.steps,
        "bound_ms": outcome.bound_s * 1e3,
        "speedup_over_best_ddp": outcome.speedup,
        "speedup_is_clear": outcome.is_clear,
        "best_ddp": outcome.best_ddp.contender.name,
        "weights_largest_difference": outcome.weights and outcome.weights.largest,
        "weights_differ_in": outcome.weights and outcome.weights.name,
        "weights_not_compared": outcome.not_compared,
        "weights_compared_with": outcome.rival.name,
        "has_same_kernels": outcome.has_same_kernels,
        "script_is_deterministic": outcome.is_deterministic,
        "ranks_agree": outcome.ranks_agree,
        "said": outcome.said,
        "wrapped_at": [wrapped.at for wrapped in outcome.wrapped],
        "runs": [_cell_document(cell) for cell in outcome.cells],
    }


def _cell_document(cell: "Cell[Arm]") -> dict[str, Any]:
    return {
        "name": cell.contender.name,
        "iteration_ms": cell.iteration_s * 1e3,
        "spread_percent": cell.spread * 100,
        "repetitions_ms": [seconds * 1e3 for seconds in cell.repetitions_s],
    }


def save_pictures(outcome: "Outcome", place: "Place", folder: Path) -> None:
    """Write try.png and try.svg."""
    from bytelane.bench.script.trial import COMMUNICATION, COMPUTE
    from bytelane.report import draw_race
    from bytelane.report.race import Racer

    racers = [
        Racer(cell.contender.name, cell.iteration_s, cell.repetitions_s)
        for cell in outcome.cells
        if cell.contender not in (COMPUTE, COMMUNICATION)
    ]
    title = f"{outcome.trial.script}\n{place.title}"
    alone = outcome.seconds(COMPUTE), outcome.seconds(COMMUNICATION)
    for suffix in ("png", "svg"):
        draw_race(title, racers, *alone, folder / f"try.{suffix}")


def require_right(outcome: "Outcome") -> None:
    """Exit with code 1 if the weights are wrong."""
    if outcome.is_wrong:
        show("bytelane: error: the weights are not what they must be", file=sys.stderr)
        raise typer.Exit(1)
