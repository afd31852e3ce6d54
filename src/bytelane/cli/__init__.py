"""The command line: one file a verb."""

try:
    from bytelane.cli.main import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

__all__ = ["main"]
