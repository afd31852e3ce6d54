"""The private option of numba that Bytelane uses, with a self-check and a fallback."""

from typing import Any

from bytelane.foreign.names import Name, find
from bytelane.foreign.names import replaced as _replaced

NAMES = (
    Name(
        "numba.core.cpu.CPUTargetOptions._nrt",
        "the simulator counts references, which takes 20 times as long",
        True,
    ),
)


def replaced() -> list[str]:
    """Return a sentence for each name that this version of numba lacks."""
    return _replaced(f"numba {find('numba.__version__')}", NAMES)


def without_reference_counting() -> dict[str, Any]:
    """Return the options for code that allocates nothing."""
    return {} if replaced() else {"_nrt": False}
