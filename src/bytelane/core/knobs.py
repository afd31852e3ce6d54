"""The numbers that may be turned, and the rule that one of them sets."""

import msgspec

from bytelane.core.kernel import NO_LIMIT
from bytelane.errors import InputError
from bytelane.values import as_whole, shown


class Knobs(msgspec.Struct, frozen=True):
    """What tuners turn. None where the policy has no use for it."""

    partition_bytes: int | None = None
    """No piece is larger."""
    credit_bytes: int | None = None
    """A piece may start while fewer bytes than this are in flight."""
    fusion_bytes: int | None = None
    """Small tensors travel together up to this."""
    first_bytes: int | None = None
    """What is needed first travels alone, in a piece of this size; the next are each twice as
    large, up to the partition. None: all are equal, and none is alone."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if value is not None and not 1 <= as_whole(value, field) <= NO_LIMIT:
                raise InputError(
                    f"{field} is {shown(value)}; it must be 1 or more, and fit in 64 bits"
                )


class CreditWindow(msgspec.Struct, frozen=True):
    """How much may be in flight: an operation may start while fewer bytes than this are.

    So one may always start, and the window overshoots by less than one operation. A credit no
    larger than a part means stop-and-wait.
    """

    credit_bytes: int | None = None
    """None sets no limit."""

    def __post_init__(self) -> None:
        if self.credit_bytes is not None and self.credit_bytes < 1:
            raise InputError(f"a credit of {self.credit_bytes} bytes never opens; use 1 or more")

    @property
    def limit(self) -> int:
        """The credit as the kernel wants it."""
        return NO_LIMIT if self.credit_bytes is None else self.credit_bytes


UNLIMITED = CreditWindow()
ONE_AT_A_TIME = CreditWindow(1)
