"""Options that several verbs share, so that they are spelled and documented alike."""

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[
    Path, typer.Argument(help="A job file (.toml or .json).", metavar="JOB", show_default=False)
]
Workers = Annotated[int, typer.Option(help="Number of workers.")]
Bandwidth = Annotated[
    str, typer.Option(help="Rate of each worker's link, e.g. 10Gbit or 500Mbit.", metavar="RATE")
]
Policy = Annotated[str, typer.Option(help="Who goes first: fifo or bytescheduler.", metavar="NAME")]
Partition = Annotated[
    str | None,
    typer.Option(
        help="Largest piece that is sent in one go, e.g. 4MiB. [default: 4MiB]", metavar="SIZE"
    ),
]
Credit = Annotated[
    str | None,
    typer.Option(
        help="Start a piece while fewer bytes than this are in flight. [default: two partitions]",
        metavar="SIZE",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
