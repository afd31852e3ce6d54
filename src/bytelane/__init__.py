"""Bytelane schedules the communication of distributed training, and predicts what that is worth.

To train: :func:`prepare`. To predict: :func:`simulate`, with a :class:`Job` on a
:class:`Cluster`. :func:`profile` makes a job of a model.

Nothing heavy is imported until it is used: ``import bytelane`` loads neither torch nor numba.
"""

from typing import TYPE_CHECKING, Any

from bytelane.errors import BytelaneError

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bytelane.api import flush, join, no_sync, prepare, replan, simulate, status
    from bytelane.cluster import Cluster, Link
    from bytelane.job import Job, Layer, Tensor
    from bytelane.measure import profile

_HOMES = {
    "Cluster": "bytelane.cluster",
    "Job": "bytelane.job",
    "Layer": "bytelane.job",
    "Link": "bytelane.cluster",
    "Tensor": "bytelane.job",
    "flush": "bytelane.api",
    "join": "bytelane.api",
    "no_sync": "bytelane.api",
    "prepare": "bytelane.api",
    "profile": "bytelane.measure",
    "replan": "bytelane.api",
    "simulate": "bytelane.api",
    "status": "bytelane.api",
}

__all__ = [
    "BytelaneError",
    "Cluster",
    "Job",
    "Layer",
    "Link",
    "Tensor",
    "__version__",
    "flush",
    "join",
    "no_sync",
    "prepare",
    "profile",
    "replan",
    "simulate",
    "status",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
