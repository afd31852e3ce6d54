"""Parse and print sizes, rates and times with units: ``"4MiB"``, ``"10Gbit"``, ``"300us"``.

This is the only place that knows what a unit is called. Inside the package a size is a number of
bytes, a rate is bytes per second and a time is seconds; names say which. It is also the only place
that knows how large a quantity may be.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

from bytelane.errors import UnitError
from bytelane.values import MOST_CHARACTERS, shown

BYTES: Mapping[str, int] = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
BITS_PER_SECOND: Mapping[str, int] = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9}
PER_SECOND: Mapping[str, int] = {"ns": 10**9, "us": 10**6, "ms": 10**3, "s": 1}
_MICRO = str.maketrans("µμ", "uu")  # the sign and the Greek letter look the same

# Beyond any cluster, and small enough that sums and products of them are finite.
LARGEST_BYTES = 2**62
LONGEST_S = 1e9
SLOWEST_RATE, FASTEST_RATE = 1e-3, 1e18 / 8  # bytes per second, up to 10**9 Gbit/s
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([A-Za-zµμ]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Read a size; a bare number is bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    number, unit = _split(str(text), "a size", BYTES)
    size = number * BYTES[unit or "B"]
    if size % 1:
        raise UnitError(f"{text!r} is not a whole number of bytes")
    if size > LARGEST_BYTES:
        raise UnitError(f"{text!r} is too large a size; at most 2**62 bytes will do")
    return int(size)


def parse_rate(text: str) -> float:
    """Read a link rate in bits per second; return bytes per second."""
    number, unit = _split(text, "a rate", BITS_PER_SECOND)
    if not unit:
        raise UnitError(f"{text!r} has no unit; a rate is written like 10Gbit or 500Mbit")
    rate = number * BITS_PER_SECOND[unit] / 8
    if rate > FASTEST_RATE:
        raise UnitError(f"{text!r} is too high a rate; at most {format_rate(FASTEST_RATE)} will do")
    if 0 < rate < SLOWEST_RATE:
        raise UnitError(f"{text!r} is too low a rate; {format_rate(SLOWEST_RATE)} or more will do")
    return float(rate)


def parse_seconds(text: str) -> float:
    """Read a time; return seconds. Only zero may stand without a unit."""
    number, unit = _split(text, "a time", PER_SECOND)
    if not unit and number != 0:
        raise UnitError(f"{text!r} has no unit; a time is written like 300us or 1.5ms")
    seconds = number / PER_SECOND[unit or "s"]
    if seconds > LONGEST_S:
        raise UnitError(f"{text!r} is too long a time; at most {LONGEST_S:g} s will do")
    return float(seconds)


def format_bytes(size: int) -> str:
    """Print a size in units in which it is round, 64 KiB or 160 kB, otherwise in decimal ones."""
    if size < BYTES["kB"]:
        return f"{size} B"
    unit = next(unit for unit in ("GB", "MB", "kB") if size >= BYTES[unit])
    decimal = f"{size / BYTES[unit]:.4g}"
    is_exact = round(float(decimal) * BYTES[unit]) == size
    for other in ("GiB", "MiB", "KiB"):
        if BYTES[other] <= size < 10_000 * BYTES[other] and size % (BYTES[other] // 4) == 0:
            binary = f"{size / BYTES[other]:.6g}"
            if not (is_exact and len(decimal) < len(binary)):
                return f"{binary} {other}"
    return f"{decimal} {unit}"


def format_rate(bytes_per_second: float) -> str:
    """Print a rate in bits per second."""
    bits = bytes_per_second * 8
    for unit in ("Gbit", "Mbit", "kbit"):
        if bits >= BITS_PER_SECOND[unit]:
            return f"{bits / BITS_PER_SECOND[unit]:.4g} {unit}/s"
    return f"{bits:.4g} bit/s"


def format_seconds(seconds: float) -> str:
    """Print a time with up to four digits."""
    for unit in ("s", "ms", "us"):
        if float(f"{abs(seconds) * PER_SECOND[unit]:.4g}") >= 1:  # 999.99 ms are 1 s
            return f"{seconds * PER_SECOND[unit]:.4g} {unit}"
    return f"{seconds * PER_SECOND['ns']:.4g} ns" if seconds else "0 s"


NOISE = "noise is larger than the difference"


def is_below(measured_s: float, bound_s: float) -> bool:
    """Tell whether a time is less than its lower bound, as printed: only noise makes it so."""
    return measured_s < bound_s and format_seconds(measured_s) != format_seconds(bound_s)


def _split(text: str, what: str, known: Mapping[str, int]) -> tuple[Fraction, str]:
    """Read the number exactly: 4.1 MB are 4100000 bytes, and no float is 4.1."""
    plain = str(text).strip().removesuffix("/s") if known is BITS_PER_SECOND else str(text)
    match = _QUANTITY.fullmatch(plain) if len(plain) <= MOST_CHARACTERS else None
    if match is None:
        raise UnitError(
            f"{shown(text)} is not {what}; write a number and one of {', '.join(known)}"
        )
    number, unit = Fraction(match[1]), match[2].translate(_MICRO)
    if unit and unit not in known:
        raise UnitError(_wrong_unit(text, what, unit, known))
    if number < 0:
        raise UnitError(f"{text!r} is not {what}: it must be finite and not negative")
    return number, unit


def _wrong_unit(text: str, what: str, unit: str, known: Mapping[str, int]) -> str:
    message = f"{text!r} is not {what}: the unit {unit!r} is not one of {', '.join(known)}"
    if known is BITS_PER_SECOND and unit in BYTES:
        message += " (rates are in bits per second)"
    near = [name for name in known if unit.lower() in _spellings(name)]
    return f"{message}; did you mean {near[0]}?" if near else message


def _spellings(unit: str) -> set[str]:
    """Return other common spellings of a unit: 10gbit, 10Gb, 10Gbps."""
    plain = unit.lower()
    return {plain, plain.replace("bit", "b"), plain.replace("bit", "bps")}
