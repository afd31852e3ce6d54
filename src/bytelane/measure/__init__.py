"""From what is there to what the simulator wants: a network becomes a Link."""

from bytelane.measure.network import Sample, fit_link, measure_link

__all__ = ["Sample", "fit_link", "measure_link"]
