"""Print the results of ``bytelane bench`` and ``bytelane overlay``: a table, JSON, pictures."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bytelane.cli.output import print_table
from bytelane.terminal import one_line, show

if TYPE_CHECKING:
    from bytelane.bench import Cell, Experiment, Result
    from bytelane.bench.contender import Contender
    from bytelane.cluster import Link
    from bytelane.lab import Lab
    from bytelane.report.overlay import Pair
    from bytelane.trace import Trace


def save_pictures(result: "Result", folder: Path) -> None:
    """Write overlay.png and .svg, and overlay.json for Perfetto."""
    from bytelane.report import draw_overlay
    from bytelane.trace import save_chrome

    pairs = [_pair(cell) for cell in result.cells if cell.overlay]
    for suffix in ("png", "svg"):
        draw_overlay(pairs, folder / f"overlay.{suffix}")
    save_chrome([t for cell in result.cells for t in _named_traces(cell)], folder / "overlay.json")


def _pair(cell: "Cell[Contender]") -> "Pair":
    from bytelane.report.overlay import Pair

    assert cell.overlay is not None
    assert cell.predicted_s is not None
    return Pair(
        cell.contender.name,
        cell.overlay.predicted,
        cell.overlay.real,
        cell.predicted_s,
        cell.iteration_s,
    )


def _named_traces(cell: "Cell[Contender]") -> "list[Trace]":
    import msgspec

    if cell.overlay is None:
        return []
    return [
        msgspec.structs.replace(trace, source=f"{cell.contender.name}, {what}")
        for what, trace in (("predicted", cell.overlay.predicted), ("real", cell.overlay.real))
    ]


def print_result(result: "Result", experiment: "Experiment", lab: "Lab") -> None:
    """Print a table with one row per contender, and remarks below it."""
    from bytelane.units import format_bytes, format_rate

    size = format_bytes(result.job.total_bytes)
    name, rate = one_line(result.job.name), format_rate(lab.rates[0])
    show(f"{name}, {size}, on {result.workers} workers, {rate}")
    show(f"{lab.mode} lab; measured between the ranks, by plain all-reduces and by our own engine:")
    show(f"{result.link}\n{result.our_link}\n")
    titles = ("", "iteration", "spread", "of bound", "over best DDP", "off prediction", "weights")
    columns = list(zip(titles, *(_row(cell, result) for cell in result.cells), strict=True))
    told = [column for column in columns if any(column[1:])]
    first, *rows = zip(*told, strict=True)
    print_table(first, rows)
    for line in _remarks(result, experiment):
        show(line)


def _row(cell: "Cell[Contender]", result: "Result") -> tuple[str, ...]:
    from bytelane.units import format_seconds

    if cell.failure:
        return (cell.contender.name, "did not run", "", "", "", "", "")
    seconds, best, bound = cell.iteration_s, _best_ddp_s(result), result.bound_s
    return (
        cell.contender.name,
        format_seconds(seconds),
        _spread(cell),
        f"{seconds / bound:.2f}x" if bound else "",
        f"{best / seconds:.2f}x" if best else "",
        f"{seconds / cell.predicted_s - 1:+.1%}" if cell.predicted_s else "",
        {True: "exact", False: "WRONG", None: ""}[cell.exact],
    )


def _spread(cell: "Cell[Contender]") -> str:
    if len(cell.times_s) < 2:
        return ""
    return f"{cell.spread:.1%}" + ("" if cell.is_quiet else " !")


def _remarks(result: "Result", experiment: "Experiment") -> list[str]:
    from bytelane.units import NOISE, format_bytes

    lines = [""]
    for cell in result.cells:
        if cell.failure:
            lines.append(f"{cell.contender.name} did not run here: {cell.failure}")
        if cell.knobs and cell.knobs.partition_bytes:
            lines.append(
                f"{cell.contender.name}: parts of {format_bytes(cell.knobs.partition_bytes)}, "
                f"{_in_flight(cell.knobs.credit_bytes)} in flight"
            )
    once = [c.contender.name for c in result.cells if 0 < len(c.times_s) < experiment.repetitions]
    if once:
        lines.append(f"not repeated, since far behind: {'; '.join(once)}")
    below = [c.contender.name for c in result.cells if _is_below_bound(c, result.bound_s)]
    if below:
        lines.append(f"below the bound, which cannot be: {'; '.join(below)}: {NOISE}")
    if experiment.drop:
        lines.append(
            f"the links have lost {experiment.drop:.0%} of their rate after all had planned; "
            "predictions know the new rate, plans do not"
        )
    if experiment.repetitions > 1 and not all(c.is_quiet for c in result.cells if c.times_s):
        lines.append("! the repetitions differ by more than 3 %: the machine was not quiet enough")
    verdict = "noticed" if result.mutation_found else "did NOT notice"
    lines.append(f"the check of the weights {verdict} a piece that was shifted by one element")
    return lines


def _is_below_bound(cell: "Cell[Contender]", bound_s: float | None) -> bool:
    """Tell whether a contender that does both took less time than the longer of both alone."""
    from bytelane.bench import CommunicationOnly, ComputeOnly

    if bound_s is None or not cell.times_s:
        return False
    alone = isinstance(cell.contender, ComputeOnly | CommunicationOnly)
    return not alone and round(cell.iteration_s / bound_s, 2) < 1


def _best_ddp_s(result: "Result") -> float | None:
    from bytelane.bench import Ddp

    times = [c.iteration_s for c in result.cells if isinstance(c.contender, Ddp) and c.times_s]
    return min(times, default=None)


def document(result: "Result", experiment: "Experiment", lab: "Lab") -> dict[str, Any]:
    """Return everything as one JSON object, units in the keys."""
    best = _best_ddp_s(result)
    return {
        "job": result.job.name,
        "total_bytes": result.job.total_bytes,
        "workers": result.workers,
        "lab_mode": lab.mode,
        "rate_bit_per_s": lab.rates[0] * 8,
        **_link_document("link", result.link),
        **_link_document("our_link", result.our_link),
        "ratio": experiment.ratio,
        "jitter": experiment.conditions.jitter,
        "slow_rank": experiment.conditions.slow_rank,
        "drop": experiment.drop,
        "bound_ms": result.bound_s and result.bound_s * 1e3,
        "best_ddp_ms": best and best * 1e3,
        "mutation_found": result.mutation_found,
        "contenders": [_cell_document(cell) for cell in result.cells],
    }


def _link_document(name: str, link: "Link") -> dict[str, Any]:
    return {
        f"{name}_bit_per_s": link.rate * 8,
        f"{name}_overhead_ms": link.overhead_s * 1e3,
        f"{name}_latency_ms": link.latency_s * 1e3,
        f"{name}_floor_ms": link.floor_s * 1e3,
    }


def _cell_document(cell: "Cell[Contender]") -> dict[str, Any]:
    if cell.failure:
        return {"name": cell.contender.name, "failure": cell.failure}
    return {
        "name": cell.contender.name,
        "iteration_ms": cell.iteration_s * 1e3,
        "spread_percent": cell.spread * 100,
        "repetitions_ms": [seconds * 1e3 for seconds in cell.repetitions_s],
        "weights_exact": cell.exact,
        "predicted_ms": cell.predicted_s and cell.predicted_s * 1e3,
        "partition_bytes": cell.knobs and cell.knobs.partition_bytes,
        "credit_bytes": cell.knobs and cell.knobs.credit_bytes,
    }


def require_exact(result: "Result") -> None:
    """Exit with code 1 if any contender's weights are wrong, or the check missed wrong ones."""
    wrong = [cell.contender.name for cell in result.cells if cell.exact is False]
    if wrong:
        problem = f"the weights of {'; '.join(wrong)} are not what they must be"
    elif not result.mutation_found:
        problem = "the check of the weights did not notice a piece that was shifted on purpose"
    else:
        return
    show(f"bytelane: error: {problem}", file=sys.stderr)
    raise typer.Exit(1)


def _in_flight(credit_bytes: int | None) -> str:
    from bytelane.units import format_bytes

    return "any number of bytes" if credit_bytes is None else format_bytes(credit_bytes)
