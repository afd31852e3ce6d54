"""Where ``bytelane`` begins: collect the verbs, and turn every expected error into one sentence."""

import sys

import typer

from bytelane import __version__
from bytelane.cli import doctor, overlay, simulate
from bytelane.errors import BytelaneError

app = typer.Typer(
    help="Schedule the communication of distributed training, and predict what that is worth.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(simulate.simulate)
app.command()(overlay.overlay)
app.command()(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"bytelane {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Show the version."
    ),
) -> None:
    pass


def main() -> None:
    """Run a verb. Bad input is one sentence and exit code 2, never a traceback."""
    try:
        app()
    except BytelaneError as error:
        sys.exit(_complain(str(error), code=2))
    except BrokenPipeError:
        # The reader (head, less) has left; Python would complain again when it flushes at exit.
        sys.stderr.close()
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)


def _complain(message: str, code: int) -> int:
    print(f"bytelane: error: {message}", file=sys.stderr)
    return code
