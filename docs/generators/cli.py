"""Generate the command-line reference with typer's own documentation command."""

import html
import re
import subprocess
import sys


def cli_reference() -> str:
    """Return one section per command: its usage, what it does, all of its options."""
    command = [sys.executable, "-m", "typer", "bytelane.cli.main", "utils", "docs"]
    done = subprocess.run(
        [*command, "--name", "bytelane"], capture_output=True, text=True, timeout=60, check=True
    )
    sections = html.unescape(done.stdout).split("\n## ")[1:]
    return "\n".join(f"## {_tidy(section)}" for section in sections)


def _tidy(section: str) -> str:
    """Set examples as code; drop ``--help``, which every command has."""
    section = re.sub(r"Example: (bytelane .*)", r"\n\nExample: `\1`", section)
    return section.replace("* `--help`: Show this message and exit.\n", "")
