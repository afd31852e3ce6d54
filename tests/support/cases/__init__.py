"""Every way of training that a user meets, run by DDP and by us."""

from cases import optimizers, loops, models, precision, lifecycle, refusals, compiling, sparse  # isort: skip
from cases.registry import CASES, variants

__all__ = [
    "CASES",
    "compiling",
    "lifecycle",
    "loops",
    "models",
    "optimizers",
    "precision",
    "refusals",
    "sparse",
    "variants",
]
