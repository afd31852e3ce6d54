"""``bytelane try``: run an unedited training script under DDP and under Bytelane."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.needs import require_torch
from bytelane.cli.options import Credit, Fusion, Json, OtherKnobs, Partition, given_knobs
from bytelane.cli.output import print_json, progress_line
from bytelane.cli.scripts import require_not_prepared, require_script
from bytelane.errors import InputError, TrainingError
from bytelane.lifetime import terminable
from bytelane.terminal import relay, show

if TYPE_CHECKING:
    from bytelane.bench.script import Outcome, Place, RunFailed, Trial

DEFAULT_RATE = "500Mbit"
AUTO = "auto"

Script = Annotated[
    Path,
    typer.Argument(
        help="A training script with DistributedDataParallel, as torchrun would start it; its own "
        "arguments follow.",
        metavar="SCRIPT",
        show_default=False,
    ),
]
Workers = Annotated[int, typer.Option(help="Number of workers; with --here, on every machine.")]
Rate = Annotated[
    str | None,
    typer.Option(
        help="Rate of each host's link, each way, e.g. 500Mbit.",
        metavar="RATE",
        show_default=DEFAULT_RATE,
    ),
]
LabMode = Annotated[
    Any,
    typer.Option(
        parser=str,
        help="How links are made: namespace (real links), pacing (no privilege), or auto.",
        metavar="MODE",
        show_default="auto",
    ),
]
NoLab = Annotated[
    bool, typer.Option("--here", help="Run with torchrun on the existing network, without a lab.")
]
Torchrun = Annotated[
    str | None,
    typer.Option(
        help="With --here: options of torchrun by which several machines find each other. Give "
        "the same command on each machine.",
        metavar="OPTIONS",
        show_default="--standalone",
    ),
]
Iterations = Annotated[int, typer.Option(help="Steps per run; the first half is the warm-up.")]
Repetitions = Annotated[
    int, typer.Option(help="How often each way to run the script is measured, in turn.")
]
Buckets = Annotated[
    str | None,
    typer.Option(help="Further bucket sizes of DDP to run, e.g. 1MiB,4MiB.", metavar="SIZES"),
]
Policy = Annotated[
    str | None,
    typer.Option(help="Policy for bytelane.prepare.", metavar="NAME", show_default=AUTO),
]
Timeout = Annotated[
    str, typer.Option(help="Time without a step after which a run is ended.", metavar="TIME")
]
Folder = Annotated[
    Path | None, typer.Option(help="Folder for the pictures try.png and try.svg.", metavar="FOLDER")
]


def try_(
    context: typer.Context,
    script: Script,
    workers: Workers = 2,
    rate: Rate = None,
    mode: LabMode = None,
    here: NoLab = False,
    torchrun: Torchrun = None,
    iterations: Iterations = 40,
    repetitions: Repetitions = 3,
    buckets: Buckets = None,
    policy: Policy = None,
    partition: Partition = None,
    credit: Credit = None,
    fusion: Fusion = None,
    knob: OtherKnobs = None,
    timeout: Timeout = "300s",
    out: Folder = None,
    as_json: Json = False,
) -> None:
    """Run a training script under DDP as it is, then under Bytelane; show both and the bound.

    The script needs no change: its DistributedDataParallel is replaced by a class that leaves the
    gradients to Bytelane. Runs take turns, each in new processes with the same random seed, and the
    final weights are compared. Arguments after -- are always the script's.

    Example: bytelane try train.py --workers 2 --rate 500Mbit -- --epochs 1
    """
    from bytelane.cli import try_output

    knobs = given_knobs(knob, policy=policy, partition=partition, credit=credit, fusion=fusion)
    trial = _make_trial(
        script, context.args, knobs, iterations, repetitions, buckets=buckets, timeout=timeout
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # before the long work, in case that is not possible
    with terminable(), _open_place(workers, rate, mode, here=here, torchrun=torchrun) as place:
        outcome = _run(trial, place)
    if as_json:
        print_json(try_output.document(outcome, place))
    else:
        try_output.print_outcome(outcome, place)
    if out is not None:
        try_output.save_pictures(outcome, place, out)
        if not as_json:
            show(f"\nsee {out / 'try.png'}")
    try_output.require_right(outcome)


def _make_trial(
    script: Path,
    arguments: Sequence[str],
    knobs: dict[str, str],
    iterations: int,
    repetitions: int,
    *,
    buckets: str | None,
    timeout: str,
) -> "Trial":
    from bytelane.api import choose_knobs
    from bytelane.units import parse_bytes, parse_seconds

    require_torch("training")
    require_not_prepared(script, require_script(script))
    from bytelane.bench.script import Trial

    given = {name: value for name, value in knobs.items() if value != AUTO}
    if "policy" in given:
        choose_knobs(**given)  # refuses a wrong knob now, and not after the first runs
    elif given:
        raise InputError(f"--{next(iter(given))} has no effect without a --policy: {AUTO} chooses")
    return Trial(
        str(script),
        tuple(arguments),
        iterations,
        repetitions,
        tuple(parse_bytes(size) for size in buckets.split(",")) if buckets else (),
        given,
        parse_seconds(timeout),
    )


@contextmanager
def _open_place(
    workers: int, rate: str | None, mode: Any, *, here: bool, torchrun: str | None
) -> "Iterator[Place]":
    from bytelane.bench.script import Here, InLab
    from bytelane.cli import lab_output
    from bytelane.lab import Lab

    if here:
        if rate is not None or mode is not None:
            raise InputError("--rate and --mode are a lab's; they have no effect with --here")
        yield Here(workers) if torchrun is None else Here(workers, torchrun)
        return
    if torchrun is not None:
        raise InputError("--torchrun has no effect without --here")
    with Lab(workers, rate or DEFAULT_RATE, mode=mode or "auto") as lab:
        lab_output.introduce(lab)
        lab_output.trust(lab.check(), refuse=False)
        yield InLab(lab)


def _run(trial: "Trial", place: "Place") -> "Outcome":
    """Run all, and show progress; a failure of the script itself is relayed unchanged."""
    from bytelane.bench.script import RunFailed, run_trial

    try:
        with progress_line("starting") as progress:
            return run_trial(trial, place, progress=progress)
    except RunFailed as failure:
        _repeat(failure)
        if failure.is_the_scripts_own:
            raise typer.Exit(failure.code) from None
        raise TrainingError(
            f"{trial.script} runs under DDP as it is, but not as {failure.arm.name}: it ended with "
            f"exit code {failure.code}"
        ) from None


def _repeat(failure: "RunFailed") -> None:
    """Relay the output of the rank that failed; without any, print the exit code."""
    relay(failure.out)
    relay(failure.err or f"exit code {failure.code}\n", file=sys.stderr)
