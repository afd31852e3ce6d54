"""Exit with 0 if this Python has a torch that Bytelane can use, quietly with 1 otherwise."""

import sys

try:
    import torch
    import torch.distributed
except Exception:  # a broken installation raises anything, and is as good as none
    sys.exit(1)

usable = (
    tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9)
    and torch.distributed.is_available()
    and torch.distributed.is_gloo_available()
)
sys.exit(not usable)
