"""The wall-clock engine, without any framework: a plan, a transport, waiting, faults."""

from bytelane.runtime.engine.engine import Engine, Transfer

__all__ = ["Engine", "Transfer"]
