"""Values of a policy's knobs (partition, credit, fusion), and the credit window."""

from collections.abc import Mapping

import msgspec

from bytelane.core.kernel import NO_LIMIT
from bytelane.errors import InputError
from bytelane.knob import FAMILIAR, SIZE_SUFFIX


class Knobs(msgspec.Struct, frozen=True):
    """Values of the knobs that tuners turn; None where the policy does not use one."""

    partition_bytes: int | None = None
    """No piece is larger."""
    credit_bytes: int | None = None
    """A piece may start while fewer bytes than this are in flight."""
    fusion_bytes: int | None = None
    """Small tensors travel together up to this size."""
    first_bytes: int | None = None
    """Size of the piece that forward needs first, which travels alone; each next piece is twice as
    large, up to the partition. None: all pieces are equal, and none travels alone."""
    own: tuple[tuple[str, int | float], ...] = ()
    """Knobs that only some policies have: their keys in alphabetical order, and their values."""

    def __post_init__(self) -> None:
        for knob in FAMILIAR:
            value = getattr(self, knob.key)
            if value is not None:
                knob.require(value)

    def __getitem__(self, name: str) -> float:
        """Return the value of a knob that the policy has declared."""
        values = self.values
        for key in (name, name + SIZE_SUFFIX):
            if key in values:
                return values[key]
        raise InputError(f"knob {name} has no value; declare it, and take all from choose_knobs()")

    @property
    def values(self) -> dict[str, float]:
        """The values that are set, by the knobs' names with their units."""
        familiar = {knob.key: getattr(self, knob.key) for knob in FAMILIAR}
        return {key: value for key, value in familiar.items() if value is not None} | dict(self.own)

    @classmethod
    def of(cls, values: Mapping[str, float | None]) -> "Knobs":
        """Take values by the knobs' names with their units; None leaves a knob unset."""
        given = {key: value for key, value in values.items() if value is not None}
        familiar = {knob.key: given.pop(knob.key, None) for knob in FAMILIAR}
        return cls(**familiar, own=tuple(sorted(given.items())))  # type: ignore[arg-type]


class CreditWindow(msgspec.Struct, frozen=True):
    """How many bytes may be in flight: an operation may start while fewer than the credit are.

    So one operation may always start, and the window overshoots by less than one operation. A
    credit no larger than a part means stop-and-wait.
    """

    credit_bytes: int | None = None
    """None sets no limit."""

    def __post_init__(self) -> None:
        if self.credit_bytes is not None and self.credit_bytes < 1:
            raise InputError(f"a credit of {self.credit_bytes} bytes never opens; use 1 or more")

    @property
    def limit(self) -> int:
        """The credit as the kernel's number."""
        return NO_LIMIT if self.credit_bytes is None else self.credit_bytes


UNLIMITED = CreditWindow()
ONE_AT_A_TIME = CreditWindow(1)
