"""PyTorch on the engine: hooks, gates, the user's own optimizer, gloo."""

from bytelane.runtime.torch.prepare import attach, session_of
from bytelane.runtime.torch.session import Session

__all__ = ["Session", "attach", "session_of"]
