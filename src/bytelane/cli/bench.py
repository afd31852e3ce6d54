"""``bytelane bench``: measure DDP, FSDP2 and Bytelane's policies in one run in a lab."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bytelane.cli.bench_output import document, print_result, require_exact, save_pictures
from bytelane.cli.lab import Mode, Rate
from bytelane.cli.needs import require_torch
from bytelane.cli.options import (
    Credit,
    JobFile,
    Json,
    OtherKnobs,
    Partition,
    Workers,
    given_knobs,
)
from bytelane.cli.output import print_json, progress_line
from bytelane.lifetime import terminable

if TYPE_CHECKING:
    from bytelane.bench import Experiment, Ours, Result
    from bytelane.job import Job
    from bytelane.lab import Lab

Policies = Annotated[
    str,
    typer.Option(
        "--policy",
        help="Policies to measure, with commas between them; all: every policy that can run.",
        metavar="NAME[,NAME...]",
    ),
]
Real = Annotated[
    bool,
    typer.Option(
        "--real", help="JOB is a real model: cnn, gpt, or package.module:function of yours."
    ),
]
TotalBytes = Annotated[
    str | None,
    typer.Option(
        "--bytes",
        help="Total size to which all tensors are scaled, e.g. 25MB.",
        metavar="SIZE",
        show_default="as is",
    ),
]
Ratio = Annotated[
    float | None,
    typer.Option(
        help="Computing time as a multiple of communication time, e.g. 1.", show_default="as is"
    ),
]
JitterSize = Annotated[
    float, typer.Option(help="Noise: each layer's time is multiplied by exp(JITTER x normal).")
]
SlowRank = Annotated[float, typer.Option(help="Factor by which rank 1 computes longer.")]
Drop = Annotated[
    float,
    typer.Option(help="Fraction of their rate that links lose after all plans are made, e.g. 0.3."),
]
Iterations = Annotated[int, typer.Option(help="Iterations per repetition.")]
Repetitions = Annotated[int, typer.Option(help="How often all contenders are measured, in turn.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        help="Folder for pictures of the prediction over the measurement.", metavar="FOLDER"
    ),
]


def bench(
    job: JobFile,
    real: Real = False,
    workers: Workers = 4,
    rate: Rate = "500Mbit",
    total: TotalBytes = None,
    ratio: Ratio = None,
    policy: Policies = "auto",
    partition: Partition = None,
    credit: Credit = None,
    knob: OtherKnobs = None,
    jitter: JitterSize = 0.0,
    slow_rank: SlowRank = 1.0,
    drop: Drop = 0.0,
    iterations: Iterations = 4,
    repetitions: Repetitions = 3,
    mode: Mode = "auto",
    out: Folder = None,
    as_json: Json = False,
) -> None:
    """Measure computing and communication alone, DDP, FSDP2 and our scheduler, in one run.

    The job's computing is emulated by sleeping; its communication is real, between the hosts of a
    lab. Contenders take turns, and the final weights of each are compared with the expected ones.
    Policy auto chooses everything by simulation on the measured link; with another policy, parts
    and credit are chosen so unless they are given. Only the first policy has ablations.

    Examples: bytelane bench resnet50 --bytes 25MB --ratio 1 --workers 4 --rate 500Mbit;
    bytelane bench cnn --real --workers 2
    """
    require_torch("training")
    from bytelane.bench import Conditions, Experiment, everyone
    from bytelane.lab import Lab

    experiment = Experiment(
        what=_what(job, real, total),
        workers=workers,
        contenders=everyone(*_ours(policy, given_knobs(knob, partition=partition, credit=credit))),
        iterations=iterations,
        repetitions=repetitions,
        ratio=ratio,
        conditions=Conditions(jitter, slow_rank),
        drop=drop,
    )
    lab = Lab(workers, rate, mode=mode)
    if real:
        _require_model(job)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # before the long work, in case that is not possible
    result = run_in(lab, experiment)
    if out is not None:
        save_pictures(result, out)
    _show(result, experiment, lab, as_json=as_json)


def _show(result: "Result", experiment: "Experiment", lab: "Lab", *, as_json: bool) -> None:
    if as_json:
        print_json(document(result, experiment, lab))
    else:
        print_result(result, experiment, lab)
    require_exact(result)


def _what(job: str, real: bool, total: str | None) -> "str | Job":
    """Return the name of a real model, or the job that is emulated."""
    from bytelane.api import find_job
    from bytelane.bench import scale_bytes
    from bytelane.errors import InputError
    from bytelane.units import parse_bytes

    if real and total is not None:
        raise InputError("--bytes has no effect on a real model; leave it out")
    if real:
        return job
    found = find_job(job)
    return found if total is None else scale_bytes(found, parse_bytes(total))


def _ours(policy: str, knobs: dict[str, str]) -> "list[Ours]":
    from bytelane.api import choose_knobs
    from bytelane.bench import Ours, real_policies
    from bytelane.errors import InputError

    if not knobs:
        names = real_policies() if policy == "all" else policy.split(",")
        return [Ours(name.strip(), None) for name in names]
    if policy == "all" or "," in policy:
        raise InputError("knobs are those of one policy; name one policy, or give no knobs")
    return [Ours(policy, choose_knobs(policy, **knobs))]


def _require_model(name: str) -> None:
    """Build the model and train it for one step here, before every rank does so in a lab."""
    from bytelane.bench.models import load_task, require_trainable
    from bytelane.measure.patches import replaced

    with replaced(sys, "path", [os.getcwd(), *sys.path]):  # as the ranks will have it
        require_trainable(name, load_task(name))


def run_in(lab: "Lab", experiment: "Experiment") -> "Result":
    """Run an experiment in a lab of its own, and show its progress."""
    from bytelane.bench import run_experiment

    with terminable(), progress_line("starting ranks") as progress, lab:
        return run_experiment(experiment, lab, progress=progress)
