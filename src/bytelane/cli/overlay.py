"""``bytelane overlay``: draw the simulated and the measured iteration over each other."""

from pathlib import Path
from typing import Annotated

import typer

from bytelane.cli.bench import run_in
from bytelane.cli.bench_output import document, print_result, require_exact, save_pictures
from bytelane.cli.lab import Mode, Rate
from bytelane.cli.needs import require_torch
from bytelane.cli.options import (
    Credit,
    JobFile,
    Json,
    OtherKnobs,
    Partition,
    Policy,
    Workers,
    given_knobs,
)
from bytelane.cli.output import print_json
from bytelane.terminal import show


def overlay(
    job: JobFile,
    workers: Workers = 2,
    rate: Rate = "250Mbit",
    policy: Policy = "bytescheduler",
    partition: Partition = None,
    credit: Credit = None,
    knob: OtherKnobs = None,
    iterations: Annotated[int, typer.Option(help="Number of iterations that are measured.")] = 12,
    mode: Mode = "auto",
    out: Annotated[
        Path, typer.Option(help="Folder for the pictures and traces.", metavar="FOLDER")
    ] = Path("out"),
    as_json: Json = False,
) -> None:
    """Train a job on the hosts of a lab, beside its own prediction.

    The job's computing is emulated by sleeping; its communication is real. Policy fifo always runs
    along for comparison. Writes overlay.png, overlay.svg and overlay.json (for ui.perfetto.dev).
    bytelane bench also runs DDP and the other baselines.

    Example: bytelane overlay examples/vgg16-small.toml --partition 512KiB
    """
    require_torch("training")
    from bytelane.api import choose_knobs, find_job
    from bytelane.bench import CommunicationOnly, ComputeOnly, Experiment, Ours
    from bytelane.core import Knobs
    from bytelane.lab import Lab

    given = given_knobs(knob, partition=partition, credit=credit)
    chosen = Ours(policy, choose_knobs(policy, **given))
    ablation = (Ours("fifo", Knobs()),) if policy != "fifo" else ()
    experiment = Experiment(
        what=find_job(job),
        workers=workers,
        contenders=(ComputeOnly(), CommunicationOnly(), *ablation, chosen),
        iterations=iterations,
        repetitions=1,
    )
    lab = Lab(workers, rate, mode=mode)
    out.mkdir(parents=True, exist_ok=True)  # before the long work, in case that is not possible
    result = run_in(lab, experiment)
    save_pictures(result, out)
    if as_json:
        print_json(document(result, experiment, lab))
    else:
        print_result(result, experiment, lab)
        show(f"see {out / 'overlay.png'}, or drop {out / 'overlay.json'} on ui.perfetto.dev")
    require_exact(result)
