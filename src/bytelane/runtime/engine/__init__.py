"""The wall-clock engine, without any framework: a plan, a transport, waiting, faults."""

from bytelane.runtime.engine.engine import PATIENCE_S, Engine, Transfer

__all__ = ["PATIENCE_S", "Engine", "Transfer"]
