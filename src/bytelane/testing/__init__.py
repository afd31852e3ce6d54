"""The contract that every policy keeps, as tests to subclass: ours and yours pass the same ones.

::

    from bytelane.testing import PolicyContract

    class TestMine(PolicyContract):
        policy = "mine"  # as it was registered

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
from bytelane.testing.policy_contract import PolicyContract  # noqa: E402
from bytelane.testing.worlds import World  # noqa: E402

__all__ = ["ContractBroken", "PolicyContract", "World"]
