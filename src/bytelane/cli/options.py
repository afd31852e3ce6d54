"""Options that several verbs share, so that they are spelled and documented alike."""

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[
    Path,
    typer.Argument(
        help="A job file (.toml or .json), or a model of the zoo.",
        metavar="JOB",
        show_default=False,
    ),
]
Accelerator = Annotated[
    str | None,
    typer.Option(help="For a model of the zoo: what computes. [default: v100]", metavar="NAME"),
]
Batch = Annotated[
    int | None, typer.Option(help="For a model of the zoo: samples a worker. [default: 32]")
]
Workers = Annotated[int, typer.Option(help="Number of workers.")]
Bandwidth = Annotated[
    str, typer.Option(help="Rate of each worker's link, e.g. 10Gbit or 500Mbit.", metavar="RATE")
]
Policy = Annotated[
    str, typer.Option(help="Who goes first; bytelane compare shows them all.", metavar="NAME")
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="Largest piece sent in one go, e.g. 4MiB. [default: the policy's]", metavar="SIZE"
    ),
]
Credit = Annotated[
    str | None,
    typer.Option(
        help="Start a piece while fewer bytes than this are in flight. "
        "[default: two partitions; p3: one]",
        metavar="SIZE",
    ),
]
Fusion = Annotated[
    str | None,
    typer.Option(help="Send tensors together up to this. [default: the policy's]", metavar="SIZE"),
]
Overhead = Annotated[
    str, typer.Option(help="Link time per message beside its bytes (theta).", metavar="TIME")
]
Latency = Annotated[
    str, typer.Option(help="From the last byte until the end is known (lam).", metavar="TIME")
]
Sync = Annotated[str, typer.Option(help="allreduce, or ps for a parameter server.", metavar="WAY")]
Servers = Annotated[
    int | None, typer.Option(help="With ps: number of servers. [default: as many as workers]")
]
Separate = Annotated[bool, typer.Option("--separate", help="With ps: servers on their own hosts.")]
Slow = Annotated[float, typer.Option(help="The last worker computes longer by this factor.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
