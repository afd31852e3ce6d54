"""Profile a model into a Job, and measure a network into a Link, for the simulator."""

from bytelane.measure.fit import Sample, fit_link
from bytelane.measure.model import profile
from bytelane.measure.network import measure_link
from bytelane.measure.result import Profile

__all__ = ["Profile", "Sample", "fit_link", "measure_link", "profile"]
