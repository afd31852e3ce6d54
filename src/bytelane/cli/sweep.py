"""``bytelane sweep``: simulate every combination of lists of values."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.options import Accelerator, Batch, Json, Separate, SharedLink, given_knobs
from bytelane.cli.output import count, print_json, print_table
from bytelane.knob import CREDIT, FUSION, PARTITION
from bytelane.terminal import one_line, show

if TYPE_CHECKING:
    from bytelane.sim.sweep import Answer, WhatIf


def _list(panel: str, metavar: str, text: str, default: str | None = None) -> Any:
    """Describe an option with commas between its values, which may also be given repeatedly."""
    return typer.Option(
        help=text,
        metavar=f"{metavar},..",
        show_default=default or False,
        default_factory=lambda: [default] if default else [],
        rich_help_panel=panel,
    )


Jobs = Annotated[
    list[Path],
    typer.Argument(
        help="Job files (.toml or .json), or models of the zoo.",
        metavar="JOB",
        show_default=False,
    ),
]
Workers = Annotated[list[str], _list("Cluster", "COUNT", "Numbers of workers.", "2")]
Bandwidth = Annotated[list[str], _list("Cluster", "RATE", "Rates of each worker's link.", "10Gbit")]
Overhead = Annotated[
    list[str],
    _list("Cluster", "TIME", "Link times per message, added to that of its bytes (theta).", "0us"),
]
Latency = Annotated[
    list[str],
    _list("Cluster", "TIME", "Times from the last byte until the end is known (lam).", "0us"),
]
Floor = Annotated[list[str], _list("Cluster", "TIME", "Minimum handling times per message.", "0us")]
Sync = Annotated[
    list[str],
    _list("Cluster", "WAY", "Synchronisation: allreduce, ps for a parameter server.", "allreduce"),
]
Servers = Annotated[list[str], _list("Cluster", "COUNT", "With ps: numbers of servers.")]
Slow = Annotated[
    list[str], _list("Cluster", "FACTOR", "Factors by which the last worker computes longer.", "1")
]
Policy = Annotated[
    list[str], _list("Policy", "NAME", "Names of policies, or all.", "bytescheduler")
]
Partition = Annotated[list[str], _list("Policy", "SIZE", PARTITION.help)]
Credit = Annotated[list[str], _list("Policy", "SIZE", CREDIT.help)]
Fusion = Annotated[list[str], _list("Policy", "SIZE", FUSION.help)]
OtherKnobs = Annotated[
    list[str] | None,
    typer.Option(
        "--knob",
        help="Values of another knob of a policy, e.g. first=128KiB,256KiB; bytelane policies "
        "lists them. Repeat it for several.",
        metavar="NAME=VALUE,..",
        show_default=False,
        rich_help_panel="Policy",
    ),
]
Best = Annotated[
    bool, typer.Option("--best", help="Show only the fastest setting for each job and cluster.")
]
CsvFile = Annotated[
    Path | None,
    typer.Option(help="CSV file to write: the rows shown, with all details.", metavar="FILE"),
]
PlotFile = Annotated[
    Path | None, typer.Option(help="Plot of all settings to write, .svg or .png.", metavar="FILE")
]
Executor = Annotated[
    str,
    typer.Option(
        help="Where to compute: serial, processes (one per core), auto (processes if that is "
        "faster) or dask://HOST:PORT.",
        metavar="WHERE",
    ),
]


def sweep(
    job: Jobs,
    workers: Workers,
    bandwidth: Bandwidth,
    overhead: Overhead,
    latency: Latency,
    floor: Floor,
    sync: Sync,
    servers: Servers,
    slow: Slow,
    policy: Policy,
    partition: Partition,
    credit: Credit,
    fusion: Fusion,
    knob: OtherKnobs = None,
    separate: Separate = False,
    shared_link: SharedLink = False,
    accelerator: Accelerator = None,
    batch: Batch = None,
    best: Best = False,
    csv: CsvFile = None,
    plot: PlotFile = None,
    executor: Executor = "auto",
    as_json: Json = False,
) -> None:
    """Simulate every combination of lists of values.

    Each policy is combined with the knobs that it has; a value given twice
    counts once. The table shows what was varied, and marks the fastest setting
    for each job and cluster.

    \b
    From which bandwidth on does the schedule not matter?
      bytelane sweep vgg16 --workers 4 --policy fifo,bytescheduler \\
        --bandwidth 5Gbit,10Gbit,25Gbit,50Gbit,100Gbit --plot vgg16.svg
    What are the best policy and partition for each number of workers?
      bytelane sweep resnet50 bert-large --workers 2,4,8,16 --overhead 20us \\
        --policy all --partition 256KiB,1MiB,4MiB,16MiB --best --csv best.csv
    """
    from bytelane.cli.sweep_settings import read_jobs, read_settings
    from bytelane.report.sweep_plot import draw_sweep as draw

    familiar = {"partition": partition, "credit": credit, "fusion": fusion}
    cluster = {"workers": workers, "servers": servers, "slow": slow, "bandwidth": bandwidth}
    settings = read_settings(
        read_jobs(job, accelerator, batch),
        policy=policy,
        knobs=_with_others(familiar, knob),
        sync=sync,
        cluster=cluster | {"overhead": overhead, "latency": latency, "floor": floor},
        servers_are={"separate": separate, "shared_link": shared_link},
    )
    _require_files(settings, csv, plot)
    answers = _answers(settings, executor)
    if plot:
        draw(answers, plot)
    _show(answers, settings, best=best, csv=csv, as_json=as_json)


def _answers(settings: "Sequence[WhatIf]", executor: str) -> "Sequence[Answer]":
    from bytelane.cli.sweep_executor import require_executor, run_sweep

    require_executor(executor)
    with _progress_bar(len(settings)) as progress:
        return run_sweep(settings, executor, progress)


def _with_others(familiar: dict[str, list[str]], others: list[str] | None) -> dict[str, list[str]]:
    """Return the lists of values of all knobs, those of ``--knob NAME=VALUES`` too."""
    knobs = dict(familiar)
    for name, values in given_knobs(others).items():
        knobs[name] = [*knobs.get(name, ()), values]
    return knobs


def _show(
    answers: "Sequence[Answer]",
    settings: "Sequence[WhatIf]",
    *,
    best: bool,
    csv: Path | None,
    as_json: bool,
) -> None:
    from bytelane.report.sweep import fastest_answers, save_csv

    fastest = fastest_answers(answers)
    shown = fastest if best else answers
    if csv:
        save_csv(_records(shown, fastest), csv)
    if as_json:
        print_json({"settings": len(settings), "answers": _records(shown, fastest)})
    else:
        _print_text(settings, shown, fastest)


def _records(shown: "Sequence[Answer]", fastest: "Sequence[Answer]") -> list[dict[str, Any]]:
    from bytelane.report.sweep import records

    marked = {id(answer) for answer in fastest}
    each = zip(records(shown), shown, strict=True)
    return [record | {"fastest": id(answer) in marked} for record, answer in each]


def _require_files(settings: "Sequence[WhatIf]", csv: Path | None, plot: Path | None) -> None:
    """Refuse files that cannot be written, before the long work."""
    from bytelane.report.style import new_figure, require_picture
    from bytelane.report.sweep_plot import make_layout

    if plot:
        require_picture(plot)
        make_layout(settings)
        new_figure(1, 1)
    for path in (csv, plot):
        if path:
            is_new = not path.exists()
            path.open("ab").close()
            if is_new:
                path.resolve().unlink()  # what a link leads to, not the link


@contextlib.contextmanager
def _progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda done: bar.update(task, completed=done)


def _print_text(
    settings: "Sequence[WhatIf]", shown: "Sequence[Answer]", fastest: "Sequence[Answer]"
) -> None:
    """Print a table of the values that differ, below a line with those that do not."""
    from bytelane.report.sweep import common_ground, swept_axes

    marked = {id(answer) for answer in fastest}
    swept = {
        axis.name: [axis.text(answer.asked) for answer in shown] for axis in swept_axes(settings)
    }
    found = {
        "iteration": _milliseconds(answer.iteration_s for answer in shown),
        "compute": _milliseconds(answer.compute_s for answer in shown),
        "communication": _milliseconds(answer.communication_s for answer in shown),
        "optimum": _milliseconds(answer.optimal_s for answer in shown),
    }
    same = {name: texts[0] for name, texts in found.items() if len(set(texts)) == 1}
    same.pop("iteration", None)
    ground = [common_ground(settings), *(f"{name} {text}" for name, text in same.items())]
    alike = one_line(", ".join(filter(None, ground)))
    show(f"{count(len(settings), 'setting')}: {alike}\n")
    columns = swept | {name: texts for name, texts in found.items() if name not in same}
    if len(fastest) < len(shown):
        columns["fastest"] = ["*" if id(answer) in marked else "" for answer in shown]
    print_table(list(columns), list(zip(*columns.values(), strict=True)))


def _milliseconds(seconds: Iterable[float]) -> list[str]:
    return [f"{one * 1e3:.1f} ms" for one in seconds]
