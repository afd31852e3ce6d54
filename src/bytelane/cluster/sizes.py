"""Flow size distributions (CDFs), given by points with straight lines between them."""

import bisect
import csv
import io
import math
from pathlib import Path

import msgspec

from bytelane.errors import InputError
from bytelane.files import read_text


class Sizes(msgspec.Struct, frozen=True):
    """A cumulative distribution: the share of flows that have at most these bytes."""

    bytes: tuple[float, ...]
    cumulative: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.bytes) != len(self.cumulative) or len(self.bytes) < 2:
            raise InputError("sizes need two or more points, each of bytes and their share")
        for name in ("bytes", "cumulative"):
            values = getattr(self, name)
            if not all(map(math.isfinite, values)) or list(values) != sorted(values):
                raise InputError(f"{name} must be finite and not fall from point to point")
        if self.bytes[0] < 0:
            raise InputError(f"a flow of {self.bytes[0]:g} bytes is not possible")
        if self.cumulative[0] < 0 or self.cumulative[-1] != 1:
            raise InputError(
                f"shares go from {self.cumulative[0]:g} to {self.cumulative[-1]:g}; "
                "they must end at 1 and begin at 0 or more"
            )

    @property
    def mean_bytes(self) -> float:
        """Of the distribution itself, without the rounding to whole bytes."""
        middles = [(a + b) / 2 for a, b in zip(self.bytes, self.bytes[1:], strict=False)]
        shares = [b - a for a, b in zip(self.cumulative, self.cumulative[1:], strict=False)]
        rest = sum(middle * share for middle, share in zip(middles, shares, strict=True))
        return self.bytes[0] * self.cumulative[0] + rest

    def quantile(self, share: float) -> int:
        """Return the size that this share of flows does not exceed: 1 byte or more."""
        above = bisect.bisect_left(self.cumulative, share)
        if above == 0:
            return max(1, round(self.bytes[0]))
        low, high = self.cumulative[above - 1 : above + 1]
        part = (share - low) / (high - low)
        return max(
            1, round(self.bytes[above - 1] + part * (self.bytes[above] - self.bytes[above - 1]))
        )


# Web search in a data centre: measured for DCTCP (Alizadeh et al., SIGCOMM 2010), used since by
# pFabric (SIGCOMM 2013) and many others, in the twelve points of "Making DDNNs Friendlier In The
# Data Center", chapter 5. Straight lines between them: as steps the mean would be 2.43 MB.
WEB_SEARCH = Sizes(
    bytes=(0, 10e3, 20e3, 30e3, 50e3, 80e3, 200e3, 1e6, 2e6, 5e6, 10e6, 30e6),
    cumulative=(0, 0.15, 0.2, 0.3, 0.4, 0.53, 0.6, 0.7, 0.8, 0.9, 0.97, 1),
)


def load_sizes(path: Path) -> Sizes:
    """Read a CSV file: bytes and cumulative probability per line, perhaps under a header line."""
    text = io.StringIO(read_text(path), newline="")
    try:
        rows = list(enumerate(csv.reader(text, strict=True), start=1))
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None
    has_names = bool(rows) and not any(map(_is_number, rows[0][1]))
    points = [_point(path, number, row) for number, row in rows[has_names:] if row]
    try:
        return Sizes(tuple(size for size, _ in points), tuple(share for _, share in points))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _point(path: Path, number: int, row: list[str]) -> tuple[float, float]:
    if len(row) != 2 or not all(map(_is_number, row)):
        raise InputError(f"{path}: line {number} is not bytes and a probability")
    return float(row[0]), float(row[1])
