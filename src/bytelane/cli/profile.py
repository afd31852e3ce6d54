"""``bytelane profile``: measure a training script, and write a job file."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.needs import require_torch
from bytelane.cli.options import Json
from bytelane.cli.output import count, print_json, print_table
from bytelane.cli.scripts import require_script
from bytelane.errors import JobFileError
from bytelane.terminal import one_line, relay, show

if TYPE_CHECKING:
    from bytelane.measure import Profile

SLOWEST = 5
# Unknown arguments are the script's.
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


def profile(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(
            help="A training script; its own arguments follow.",
            metavar="SCRIPT",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The job file to write.", metavar="FILE", show_default="SCRIPT.toml"),
    ] = None,
    iterations: Annotated[
        int, typer.Option(help="Iterations to observe; as many run unobserved between them.")
    ] = 20,
    warmup: Annotated[int, typer.Option(help="Iterations before the observed ones.")] = 3,
    as_json: Json = False,
) -> None:
    """Run a training script for some iterations, and write its layers and times as a job file.

    The script needs no change and runs in one process. It is ended after the last observed
    iteration. Arguments after -- are always the script's.

    Example: bytelane profile train.py --epochs 1 --out job.toml
    """
    from bytelane.job import save

    path = out or Path(f"{script.stem}.toml")
    _require_writable(path)
    require_torch("profiling")
    require_script(script)
    from bytelane.measure.script import ScriptFailed, profile_script

    # The output of the script must not end up in our JSON.
    elsewhere = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    try:
        with elsewhere:
            found = profile_script(
                script, context.args, iterations=iterations, warmup=warmup, say=_say
            )
    except ScriptFailed as failure:
        relay(str(failure), file=sys.stderr)
        raise typer.Exit(failure.code) from None
    save(found.job, path)
    if as_json:
        print_json(summary(found) | {"job_file": str(path)})
    else:
        _print_text(found)
        show(f"wrote {path}; now: bytelane compare {path} --workers 4 --bandwidth 1Gbit")


def _require_writable(path: Path) -> None:
    """Refuse a bad path before the long work."""
    if path.suffix not in (".toml", ".json"):
        raise JobFileError(f"{path}: a job file ends in .toml or .json")
    if not path.parent.is_dir():
        raise JobFileError(f"{path}: there is no folder {path.parent}")


def _say(message: str) -> None:
    show(f"bytelane: {message}", file=sys.stderr, flush=True)


def summary(found: "Profile") -> dict[str, Any]:
    """Return everything that was measured, units in the keys."""
    job = found.job
    return {
        "job": job.name,
        "tensors": len(job.tensors),
        "total_bytes": job.total_bytes,
        "observed_iterations": found.counted,
        "iteration_ms": found.iteration.median_s * 1e3,
        "iteration_spread_ms": found.iteration.spread_s * 1e3,
        "observed_iteration_ms": found.observed.median_s * 1e3,
        "overhead_ms": found.overhead_s * 1e3,
        "marks": found.marks,
        "mark_us": found.mark_s * 1e6,
        "stages": {
            stage: {"ms": time.median_s * 1e3, "spread_ms": time.spread_s * 1e3}
            for stage, time in found.stages.items()
        },
        "layers": [
            {
                "name": layer.name,
                "forward_ms": layer.forward.median_s * 1e3,
                "forward_spread_ms": layer.forward.spread_s * 1e3,
                "backward_ms": layer.backward.median_s * 1e3,
                "backward_spread_ms": layer.backward.spread_s * 1e3,
            }
            for layer in found.layers
        ],
        "notes": found.notes,
    }


def _print_text(found: "Profile") -> None:
    from bytelane.units import format_bytes, format_seconds

    job, whole = found.job, found.iteration
    show(
        f"{one_line(job.name)}: {format_bytes(job.total_bytes)} of gradients in "
        f"{count(len(job.tensors), 'tensor')}, {count(len(job.layers), 'layer')}; "
        f"median of {count(found.counted, 'iteration')}\n"
    )
    rows = [*found.stages.items(), ("iteration", whole)]
    print_table(
        ("stage", "time", "spread", "share"),
        [
            (
                name,
                format_seconds(time.median_s),
                format_seconds(time.spread_s),
                f"{time.median_s / whole.median_s:.1%}",
            )
            for name, time in rows
        ],
    )
    show("\nmost time in")
    slowest = sorted(job.layers, key=lambda layer: layer.compute_s, reverse=True)[:SLOWEST]
    print_table(
        ("layer", "forward", "backward", "update"),
        [
            (
                layer.name,
                format_seconds(layer.forward_s),
                format_seconds(layer.backward_s),
                format_seconds(layer.update_s),
            )
            for layer in slowest
        ],
    )
    show(
        f"\nwith hooks an iteration took {format_seconds(found.observed.median_s)}; the cost of "
        f"{found.marks} marks, {format_seconds(found.mark_s)} each, is subtracted"
    )
    for note in found.notes:
        show(f"note: {note}")
