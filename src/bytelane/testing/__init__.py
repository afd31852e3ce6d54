"""Contract tests of policies, transports and engines, to subclass for your own.

::

    from bytelane.testing import PolicyContract

    class TestMine(PolicyContract):
        policy = "mine"  # as it was registered

:class:`TransportContract` and :class:`EngineContract` are used in the same way.
:class:`ManualTransport`, :class:`ImmediateTransport` and :class:`StreamTransport` are test doubles.
"""

from bytelane.errors import MissingExtra as _MissingExtra


def _require_extra() -> None:
    try:
        import hypothesis  # noqa: F401
        import pytest  # noqa: F401
    except ImportError:
        raise _MissingExtra(
            "the contract needs pytest and hypothesis; install them with: "
            "pip install 'bytelane[testing]'"
        ) from None


_require_extra()

from bytelane.testing.contract import ContractBroken  # noqa: E402
from bytelane.testing.engine_contract import EngineContract  # noqa: E402
from bytelane.testing.policy_contract import PolicyContract  # noqa: E402
from bytelane.testing.transport_contract import TransportContract  # noqa: E402
from bytelane.testing.transports import (  # noqa: E402
    ImmediateTransport,
    ManualTransport,
    Stream,
    StreamTransport,
    WrongOrder,
)
from bytelane.testing.worlds import World  # noqa: E402

__all__ = [
    "ContractBroken",
    "EngineContract",
    "ImmediateTransport",
    "ManualTransport",
    "PolicyContract",
    "Stream",
    "StreamTransport",
    "TransportContract",
    "World",
    "WrongOrder",
]
