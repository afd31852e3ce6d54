"""The zoo: well-known models as jobs, computed from their architectures.

Sizes are exact and their totals are the published ones. Times are estimates from arithmetic and
memory traffic on a named accelerator, good enough to ask which policy wins and by roughly how much;
measure where it matters. The thesis's synthetic jobs are here as well.
"""

from bytelane.job.zoo.accelerator import accelerator_names
from bytelane.job.zoo.catalogue import Summary, make, names, summary

__all__ = ["Summary", "accelerator_names", "make", "names", "summary"]
