"""What torch.compile has made of a script: which graphs were split, and by whom.

DDP splits the graph of a compiled model at its buckets, so that gradients are sent during backward.
Each part has kernels of its own, which round differently from those of the whole graph.
"""

import sys

from bytelane.runtime.torch.gate import REASON

DYNAMO = "torch._dynamo"


def splits_graphs() -> bool:
    """Tell whether this process has compiled code, and DDP splits it at its buckets."""
    if DYNAMO not in sys.modules:
        return False
    from torch._dynamo.utils import counters, get_optimize_ddp_mode

    return bool(counters["frames"]["ok"]) and get_optimize_ddp_mode() == "ddp_optimizer"


def split_no_graphs() -> None:
    """Let DDP compile whole graphs from now on."""
    import torch._dynamo

    torch._dynamo.config.optimize_ddp = False


def has_gates_in_graphs() -> bool:
    """Tell whether a graph was split at a gate of Bytelane: it was compiled after prepare()."""
    if DYNAMO not in sys.modules:
        return False
    from torch._dynamo.utils import counters

    return any(REASON in reason for reason in counters["graph_break"])
