"""PyTorch on the engine: hooks, gates, the user's own optimizer, gloo."""

from bytelane.runtime.torch.controls import join, no_sync
from bytelane.runtime.torch.prepare import attach, find_session, session_of
from bytelane.runtime.torch.session import Session

__all__ = ["Session", "attach", "find_session", "join", "no_sync", "session_of"]
