"""Which optimizers may be stepped for some parameters before the others."""

import torch

# Stepping these for some parameters now and for the others later is bit-equal to one step (see
# tests/unit/test_deferred_step.py). By exact type: AdamW has become a subclass of Adam, and a
# user's subclass may couple parameters.
_SEPARABLE = (
    *("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adafactor", "Muon"),
    *("Adadelta", "Adamax", "ASGD", "RAdam", "Rprop", "SparseAdam"),
)
SEPARABLE_OPTIMIZERS: tuple[type, ...] = tuple(
    getattr(torch.optim, name) for name in _SEPARABLE if hasattr(torch.optim, name)
)


def is_separable(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the optimizer may be stepped for some parameters before the others."""
    return type(optimizer) in SEPARABLE_OPTIMIZERS
