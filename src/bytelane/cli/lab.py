"""``bytelane lab``: emulate a cluster on one machine, with links of a given rate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.options import Json
from bytelane.lifetime import terminable

if TYPE_CHECKING:
    from bytelane.lab import Lab, Workload

app = typer.Typer(
    help="Emulate a cluster on one machine, with links of a given rate.", no_args_is_help=True
)

Hosts = Annotated[int, typer.Option("--workers", help="Number of hosts, with one rank each.")]
Rate = Annotated[
    str, typer.Option(help="Rate of each host's link, each way, e.g. 500Mbit.", metavar="RATE")
]
# Any, so that typer accepts all values: Lab refuses the wrong ones.
Priority = Annotated[
    Any,
    typer.Option(
        parser=str,
        help="Queue with strict priorities by type of service: pfifo_fast where hosts send, "
        "htb also where the switch sends. [default: none]",
        metavar="QUEUE",
    ),
]
Mode = Annotated[
    Any,
    typer.Option(
        parser=str,
        help="How links are made: namespace (real links), pacing (no privilege), or auto.",
        metavar="MODE",
    ),
]
SizesFile = Annotated[
    Path | None,
    typer.Option(
        help="Sizes of the flows: a CSV file of bytes and cumulative probability. "
        "[default: web search]",
        metavar="FILE",
    ),
]
Band = Annotated[
    Any,
    typer.Option(parser=str, help="Priority of the flows: high, normal or low.", metavar="BAND"),
]
Seed = Annotated[int, typer.Option(help="Seed of the random flows.")]
Seconds = Annotated[float, typer.Option(help="Seconds per measurement.")]

Command = Annotated[
    list[str], typer.Argument(help="Command to run on every host.", metavar="-- COMMAND")
]
ScheduleFile = Annotated[
    Path | None,
    typer.Option(help="Rates over time: TOML or CSV of at_s, rate, host.", metavar="FILE"),
]
Timeout = Annotated[
    str | None,
    typer.Option(help="Time after which the command is stopped, e.g. 90s.", metavar="TIME"),
]
Check = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        help="Measure the links first and refuse to go on if they are not right, "
        "or do not measure. [default: measure, and warn]",
    ),
]
TrafficLoad = Annotated[
    float | None,
    typer.Option(help="Background traffic, as a share of a link's rate, e.g. 0.25."),
]
TrafficBand = Annotated[
    Any,
    typer.Option(
        parser=str,
        help="Priority of the flows: high, normal or low. [default: normal]",
        metavar="BAND",
    ),
]
TrafficSeed = Annotated[int | None, typer.Option(help="Seed of the random flows. [default: 1]")]
TrafficFile = Annotated[
    Path | None,
    typer.Option(help="File for the flows' completion times, as JSON.", metavar="FILE"),
]

TIMED_OUT = 124  # the exit code of timeout(1)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Command,
    rate: Rate,
    workers: Hosts = 2,
    priority: Priority = None,
    mode: Mode = "auto",
    schedule: ScheduleFile = None,
    timeout: Timeout = None,
    check: Check = None,
    traffic: TrafficLoad = None,
    traffic_sizes: SizesFile = None,
    traffic_band: TrafficBand = None,
    traffic_seed: TrafficSeed = None,
    traffic_out: TrafficFile = None,
) -> None:
    """Run a command on every host of a cluster on this machine, as torchrun would.

    Output lines are prefixed with the rank. When a rank fails the others are stopped, and its exit
    code is returned (124: the timeout). Everything is removed at the end, whatever happens.

    Example: bytelane lab run --workers 4 --rate 500Mbit -- python train.py
    """
    from bytelane.cli import lab_output
    from bytelane.errors import InputError, LabTimeout
    from bytelane.lab import Lab, Traffic, load_schedule
    from bytelane.lab.run import require_timeout
    from bytelane.units import parse_seconds

    if traffic is None and (
        traffic_sizes or traffic_band or traffic_out or traffic_seed is not None
    ):
        raise InputError("options of the traffic have no effect without --traffic")
    if traffic_out:
        traffic_out.touch()  # before the long work, in case that is not possible
    steps = load_schedule(schedule, workers) if schedule else ()
    timeout_s = None if timeout is None else parse_seconds(timeout)
    if timeout_s is not None:
        require_timeout(timeout_s)
    lab = Lab(workers, rate, priority=priority, mode=mode)
    workload = None
    if traffic is not None:
        band, seed = traffic_band or "normal", 1 if traffic_seed is None else traffic_seed
        workload = _workload(lab, traffic_sizes, load=traffic, band=band, seed=seed)
    with terminable(), lab:
        lab_output.introduce(lab)
        if check is not False:
            lab_output.trust(lab.check(), refuse=check is True)
        background = None if workload is None else Traffic(lab, workload)
        try:
            code = lab.run(command, timeout_s=timeout_s, schedule=steps)
        except LabTimeout as error:
            lab_output.warn(str(error))
            code = TIMED_OUT
        if background:
            lab_output.tell_traffic(background.stop(), traffic_out)
    raise typer.Exit(code)


@app.command()
def check(
    rate: Annotated[
        str | None,
        typer.Option(
            help="The only rate to check. [default: several, up to the highest that is right]",
            metavar="RATE",
        ),
    ] = None,
    workers: Hosts = 2,
    priority: Priority = None,
    mode: Mode = "auto",
    seconds: Seconds = 1.0,
    as_json: Json = False,
) -> None:
    """Measure the links of a lab, all in both directions at once, as an all-reduce uses them.

    Exit code 1 if a rate that was asked for does not come out right, or none does.

    Example: bytelane lab check --workers 4
    """
    from bytelane.cli import lab_output
    from bytelane.cli.output import print_json
    from bytelane.lab import Lab, sweep_rates
    from bytelane.lab.check import require_measurable
    from bytelane.units import parse_rate

    require_measurable(seconds)
    rates = [parse_rate(text) for text in (lab_output.SWEEP if rate is None else [rate])]
    with terminable(), Lab(workers, rates[0], priority=priority, mode=mode) as lab:
        found = sweep_rates(lab, rates, seconds)
        lab.set_rate(found[0][0].asked)
        shares = lab.check_priority(seconds) if priority else []
    if as_json:
        print_json(lab_output.check_document(lab, found, shares))
    else:
        lab_output.introduce(lab)
        lab_output.print_check(lab, found, shares)
    if not all(hop.is_right for hop in found[0]):
        raise typer.Exit(1)


@app.command()
def traffic(
    rate: Rate,
    workers: Hosts = 4,
    load: Annotated[
        float | None, typer.Option(help="Share of a link's rate, e.g. 0.25.", show_default=False)
    ] = None,
    flows: Annotated[
        float | None,
        typer.Option(help="Flows per second per host, instead of --load.", show_default=False),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds during which flows start.")] = 12.0,
    margin: Annotated[
        float, typer.Option(help="Seconds at the start and at the end whose flows are not counted.")
    ] = 2.0,
    sizes: SizesFile = None,
    band: Band = "normal",
    seed: Seed = 1,
    priority: Priority = None,
    as_json: Json = False,
) -> None:
    """Send background flows between the hosts of a lab; show their completion times by size.

    Flows arrive at random (Poisson) at every host, each to a random other one, on a connection of
    its own.

    Example: bytelane lab traffic --workers 4 --rate 500Mbit --load 0.25
    """
    from bytelane.cli import lab_output
    from bytelane.cli.output import print_json
    from bytelane.errors import InputError
    from bytelane.lab import Lab, Traffic

    lab = Lab(workers, rate, priority=priority, mode="namespace")
    workload = _workload(
        lab, sizes, load=load, flows_per_s=flows, seconds=seconds, band=band, seed=seed
    )
    if not 0 <= margin < seconds / 2:
        raise InputError(
            f"margins of {margin:g} s leave nothing of {seconds:g} s; use 0 or more, and less than "
            "half of the time"
        )
    with terminable(), lab:
        report = Traffic(lab, workload).wait(margin)
    if as_json:
        print_json(lab_output.traffic_document(report))
    else:
        lab_output.introduce(lab)
        lab_output.print_traffic(report)


@app.command()
def clean(as_json: Json = False) -> None:
    """End processes and remove folders that killed labs left; labs in use are not touched."""
    from bytelane.cli import lab_output
    from bytelane.cli.output import print_json
    from bytelane.lab import clean as clean_labs

    found = clean_labs()
    if as_json:
        print_json(found)
    else:
        lab_output.print_cleaning(found)


def _workload(lab: "Lab", sizes: Path | None, **options: Any) -> "Workload":
    """Return the background flows, or refuse them, before the lab is built."""
    from bytelane.cluster.sizes import WEB_SEARCH, load_sizes

    return lab.workload(sizes=WEB_SEARCH if sizes is None else load_sizes(sizes), **options)
