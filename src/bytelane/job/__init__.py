"""Training jobs: layers with their computing times in execution order, and their tensors."""

from bytelane.job.files import load, save
from bytelane.job.job import Job, Layer, Tensor

__all__ = ["Job", "Layer", "Tensor", "load", "save"]
