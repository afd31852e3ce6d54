"""A cluster on one machine. So far: links slowed down without any privilege."""

from bytelane.lab.pacing import open_sockets, pace

__all__ = ["open_sockets", "pace"]
