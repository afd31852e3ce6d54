"""The PyTorch runtime: module, autograd and optimizer hooks, deferred steps, transports by gloo."""

from bytelane.runtime.torch.prepare import attach, find_session, session_of
from bytelane.runtime.torch.session import Session, Settings
from bytelane.runtime.torch.user_controls import flush, join, no_sync

__all__ = [
    "Session",
    "Settings",
    "attach",
    "find_session",
    "flush",
    "join",
    "no_sync",
    "session_of",
]
