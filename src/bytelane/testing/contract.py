"""A rule is a check with a docstring: its first line is the rule, the rest why it matters."""

import functools
import inspect
from collections.abc import Callable
from typing import Protocol, TypeVar


class ContractBroken(AssertionError):
    """A rule does not hold. The message says which one, what was found, and why it matters."""


class _Contract(Protocol):
    policy: str


C = TypeVar("C", bound=_Contract)


def rule(check: Callable[[C], None]) -> Callable[[C], None]:
    """Let a check that fails say all of this, from its docstring."""
    statement, _, why = (inspect.getdoc(check) or "").partition("\n\n")

    @functools.wraps(check)
    def explained(contract: C) -> None:
        try:
            check(contract)
        except ContractBroken as broken:
            # The same exception goes on: hypothesis has noted on it how to see it again.
            broken.args = (
                f"policy {contract.policy!r} breaks a rule: {statement}\n"
                f"  found: {broken}\n"
                f"  why it matters: {' '.join(why.split())}",
            )
            raise

    return explained


def require(holds: bool, found: str) -> None:
    """Raise what was found if that is not as it must be."""
    if not holds:
        raise ContractBroken(found)
