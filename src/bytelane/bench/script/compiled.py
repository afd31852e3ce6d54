"""Tell whether graphs of torch.compile were split, by DDP or by Bytelane.

DDP splits the graph of a compiled model at its buckets, so that gradients are sent during backward.
Each part has kernels of its own, which round differently from those of the whole graph.
"""

from bytelane.foreign.torch import compiled_frames, ddp_splits_graphs, graph_breaks
from bytelane.runtime.torch.module_hooks import REASON


def splits_graphs() -> bool:
    """Tell whether this process has compiled code, and DDP splits it at its buckets."""
    return compiled_frames() > 0 and ddp_splits_graphs()


def has_gates_in_graphs() -> bool:
    """Tell whether a graph was split at a hook of Bytelane: it was compiled after prepare()."""
    return any(REASON in reason for reason in graph_breaks())
