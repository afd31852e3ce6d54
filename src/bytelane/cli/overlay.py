"""``bytelane overlay``: predict a training run, do it for real, lay both over each other."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.options import Bandwidth, Credit, JobFile, Json, Partition, Policy, Workers
from bytelane.cli.output import print_json

if TYPE_CHECKING:
    from bytelane.bench import Outcome


def overlay(
    job: JobFile,
    workers: Workers = 2,
    bandwidth: Bandwidth = "250Mbit",
    policy: Policy = "bytescheduler",
    partition: Partition = None,
    credit: Credit = None,
    iterations: Annotated[int, typer.Option(help="Iterations that count.")] = 12,
    out: Annotated[
        Path, typer.Option(help="Folder for the pictures and traces.", metavar="FOLDER")
    ] = Path("out"),
    as_json: Json = False,
) -> None:
    """Train a job on local ranks with a slowed-down network, beside its own prediction.

    The job's computing is emulated by sleeping; its communication is real. Policy fifo always runs
    along for comparison. Writes overlay.png, overlay.svg and overlay.json (for ui.perfetto.dev).

    Example: bytelane overlay examples/vgg16-small.toml --partition 512KiB
    """
    from bytelane.api import choose_knobs, find_job
    from bytelane.bench import Contender, Experiment, run_experiment
    from bytelane.report import draw_overlay
    from bytelane.trace import save_chrome
    from bytelane.units import parse_rate

    names = [policy] if policy == "fifo" else ["fifo", policy]
    experiment = Experiment(
        job=find_job(job),
        workers=workers,
        rate=parse_rate(bandwidth),
        contenders=tuple(
            Contender(
                name,
                choose_knobs(policy, partition, credit)
                if name == policy
                else choose_knobs(name, None, None),
            )
            for name in names
        ),
        iterations=iterations,
    )
    out.mkdir(parents=True, exist_ok=True)  # before the long work, in case that is not possible
    outcomes = _run(run_experiment, experiment)
    for suffix in ("png", "svg"):
        draw_overlay([_pair(outcome) for outcome in outcomes], out / f"overlay.{suffix}")
    save_chrome([t for o in outcomes for t in _named_traces(o)], out / "overlay.json")
    if as_json:
        _print_json(experiment, outcomes)
    else:
        _print_text(outcomes, out)
    if not all(outcome.weights_exact for outcome in outcomes):
        print("bytelane: error: the weights are not what they must be", file=sys.stderr)
        raise typer.Exit(1)


def _run(run: Any, experiment: Any) -> "list[Outcome]":
    from rich.console import Console

    with Console(stderr=True).status("starting ranks") as status:
        outcomes: list[Outcome] = run(
            experiment, progress=lambda line: status.update(f"training: {line}")
        )
    return outcomes


def _pair(outcome: "Outcome") -> Any:
    from bytelane.report.overlay import Pair

    return Pair(
        outcome.contender.policy,
        outcome.predicted,
        outcome.real,
        outcome.predicted_s,
        outcome.real_s,
    )


def _named_traces(outcome: "Outcome") -> list[Any]:
    import msgspec

    name = outcome.contender.policy
    return [
        msgspec.structs.replace(outcome.predicted, source=f"{name}, predicted"),
        msgspec.structs.replace(outcome.real, source=f"{name}, real"),
    ]


def _print_text(outcomes: "list[Outcome]", out: Path) -> None:
    from bytelane.units import format_seconds

    print(f"measured link: {outcomes[-1].link}")
    print(f"{'policy':<15}{'predicted':>11}{'real':>11}{'error':>8}{'bound':>11}  weights")
    for o in outcomes:
        print(
            f"{o.contender.policy:<15}{format_seconds(o.predicted_s):>11}"
            f"{format_seconds(o.real_s):>11}{o.error:>8.1%}{format_seconds(o.bound_s):>11}  "
            f"{'exact' if o.weights_exact else 'WRONG'}"
        )
    if len(outcomes) > 1:
        print(f"{outcomes[-1].contender.policy} is {_gain(outcomes):.2f}x as fast as fifo")
    print(f"see {out / 'overlay.png'}, or drop {out / 'overlay.json'} on ui.perfetto.dev")


def _gain(outcomes: "list[Outcome]") -> float:
    return outcomes[0].real_s / outcomes[-1].real_s


def _print_json(experiment: Any, outcomes: "list[Outcome]") -> None:
    document = {
        "job": experiment.job.name,
        "workers": experiment.workers,
        "bandwidth_bit_per_s": experiment.rate * 8,
        "runs": [
            {
                "policy": o.contender.policy,
                "predicted_ms": o.predicted_s * 1e3,
                "real_ms": o.real_s * 1e3,
                "real_spread_ms": o.real_spread_s * 1e3,
                "error_percent": o.error * 100,
                "compute_ms": o.compute_s * 1e3,
                "communication_ms": o.communication_s * 1e3,
                "bound_ms": o.bound_s * 1e3,
                "link_bit_per_s": o.link.rate * 8,
                "link_overhead_ms": o.link.overhead_s * 1e3,
                "link_latency_ms": o.link.latency_s * 1e3,
                "weights_exact": o.weights_exact,
            }
            for o in outcomes
        ],
    }
    print_json(document)
