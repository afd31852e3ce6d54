"""The command line: one file a verb."""

from bytelane.cli.main import main

__all__ = ["main"]
