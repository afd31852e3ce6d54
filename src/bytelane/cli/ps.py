"""``bytelane ps``: run parameter servers, and make their keys."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Run parameter servers, and make their keys.", no_args_is_help=True)


@app.command()
def serve(
    listen: Annotated[
        str,
        typer.Option(
            help="Address of this host to listen on; the next port is used, too. "
            "Port 0: any two that are free.",
            metavar="HOST:PORT",
        ),
    ],
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the keys of bytelane ps keygen: encrypt, and admit only workers that "
            "have them. [default: none; only loopback addresses are served]",
            metavar="FOLDER",
        ),
    ] = None,
    plaintext: Annotated[
        bool,
        typer.Option("--plaintext", help="Serve a network without keys: anyone there can join."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per line instead of text.")
    ] = False,
) -> None:
    """Run a parameter server for one job, until all of its workers have left.

    It prints a line when it is ready, with both ports.

    Example: bytelane ps serve --listen 10.0.0.5:5600 --keys ps-keys
    """
    from bytelane.runtime.ps.process import serve as serve_job

    serve_job(listen, keys=keys, plaintext=plaintext, as_json=as_json)


@app.command()
def keygen(
    folder: Annotated[Path, typer.Argument(help="Folder to write the keys to.", metavar="FOLDER")],
) -> None:
    """Make keys, with which servers and workers encrypt and recognise each other.

    Servers need server.secret and both public keys, workers need worker.secret and both public
    keys. Existing keys are never overwritten.

    Example: bytelane ps keygen ps-keys
    """
    from bytelane.runtime.ps.keys import keygen as make_keys
    from bytelane.terminal import show

    for path in make_keys(folder):
        show(str(path))
