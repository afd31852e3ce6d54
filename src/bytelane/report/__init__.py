"""Numbers that people would rather see."""

from bytelane.report.overlay import draw_overlay

__all__ = ["draw_overlay"]
