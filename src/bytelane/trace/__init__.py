"""Traces of the simulator and of training: spans, gradient flows, Chrome trace files."""

from bytelane.trace.chrome import save_chrome, spread
from bytelane.trace.flow import flows
from bytelane.trace.span import Carried, Kind, Span, Trace

__all__ = ["Carried", "Kind", "Span", "Trace", "flows", "save_chrome", "spread"]
