"""From what is there to what the simulator wants: a model becomes a Job, a network a Link."""

from bytelane.measure.fit import Sample, fit_link
from bytelane.measure.model import profile
from bytelane.measure.network import measure_link
from bytelane.measure.result import Profile

__all__ = ["Profile", "Sample", "fit_link", "measure_link", "profile"]
