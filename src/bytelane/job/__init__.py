"""What is trained: operations in execution order and the tensors they share."""

from bytelane.job.files import load, save
from bytelane.job.job import Job, Layer, Tensor

__all__ = ["Job", "Layer", "Tensor", "load", "save"]
