"""Entry point of the command line: register the verbs, print expected errors as one sentence."""

import io
import os
import sys

import typer

from bytelane import __version__, interrupts
from bytelane.cli import (
    bench,
    compare,
    doctor,
    lab,
    overlay,
    policies,
    profile,
    profile_network,
    ps,
    replay,
    simulate,
    sweep,
    timeline,
    try_,
    why,
    zoo,
)
from bytelane.cli.usage import UsageError, sentence, show_help
from bytelane.errors import BytelaneError
from bytelane.terminal import one_line, show

app = typer.Typer(
    help="Schedule the communication of distributed training, and predict what that is worth.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(simulate.simulate)
app.command()(compare.compare)
app.command()(sweep.sweep)
app.command()(why.why)
app.command()(timeline.timeline)
app.command()(zoo.zoo)
app.command()(policies.policies)
app.command(context_settings=profile.SETTINGS)(profile.profile)
app.command()(profile_network.profile_network)
app.command("try", context_settings=profile.SETTINGS)(try_.try_)
app.command()(bench.bench)
app.command()(overlay.overlay)
app.command()(replay.replay)
app.add_typer(lab.app, name="lab")
app.add_typer(ps.app, name="ps")
app.command()(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        show(f"bytelane {__version__}")
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
    interrupts.give_up = _end_at_once
    try:
        _run()
    finally:
        interrupts.give_up = None


def _run() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process has closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that the terminal cannot show
    try:
        try:
            code = app(standalone_mode=False)  # which would print a box for a usage error
        finally:
            sys.stdout.flush()  # here, where a BrokenPipeError can still be handled
        sys.exit(code)
    except UsageError as error:
        if show_help(error):
            sys.exit(2)
        sys.exit(_complain(sentence(error)))
    except BytelaneError as error:
        sys.exit(_complain(str(error)))
    except MemoryError:
        _complain("there is not enough memory for this")
        sys.exit(1)
    except BrokenPipeError:
        # Python flushes once more at exit; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        sys.exit(_complain(f"{error.filename or 'output'}: {error.strerror}"))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)


def _end_at_once() -> None:
    """Exit as at Ctrl-C, where KeyboardInterrupt cannot be raised."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h")  # a progress bar has hidden the cursor
    os._exit(130)


def _complain(message: str) -> int:
    show(f"bytelane: error: {one_line(message)}", file=sys.stderr)
    return 2
