"""Rules of a contract: checks whose docstring has the rule, then why it matters."""

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
    """Make a failing check report the rule and why it matters, from its docstring."""
    statement, _, why = (inspect.getdoc(check) or "").partition("\n\n")

    @functools.wraps(check)
    def explained(contract: C) -> None:
        try:
            check(contract)
        except ContractBroken as broken:
            # The same exception is raised again: hypothesis has put a note on it how to reproduce.
            broken.args = (
                f"policy {contract.policy!r} breaks a rule: {statement}\n"
                f"  found: {broken}\n"
                f"  why it matters: {' '.join(why.split())}",
            )
            raise

    return explained


def require(holds: bool, found: str) -> None:
    """Raise ContractBroken with what was found, unless the condition holds."""
    if not holds:
        raise ContractBroken(found)
