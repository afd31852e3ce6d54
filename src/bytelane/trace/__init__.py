"""What happened, from either engine: spans, and the files that show them."""

from bytelane.trace.chrome import save_chrome, spread
from bytelane.trace.span import Kind, Span, Trace

__all__ = ["Kind", "Span", "Trace", "save_chrome", "spread"]
