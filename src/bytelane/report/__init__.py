"""Draw simulations and measurements with matplotlib, and tabulate sweeps."""

from bytelane.report.bars import draw_bars
from bytelane.report.overlay import draw_overlay
from bytelane.report.race import draw_race
from bytelane.report.style import require_picture
from bytelane.report.timeline import draw_timeline

__all__ = ["draw_bars", "draw_overlay", "draw_race", "draw_timeline", "require_picture"]
