"""Declare a knob of a policy: its name, kind, range, default and help.

Python's keywords, the options of the command line, the axes of a sweep, the tables in the docs, the
space of a tuner and the contract all derive from the declaration. The command line reads those of
:data:`FAMILIAR` before it knows which verb is wanted, so nothing large is imported here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from bytelane.errors import InputError, UnitError
from bytelane.units import format_bytes, parse_bytes
from bytelane.values import as_number, as_whole, shown

Kind = Literal["bytes", "count", "number"]
LARGEST = 2**63 - 1
SIZE_SUFFIX = "_bytes"

# Arguments of simulate(), make_cluster(), prepare() and replan(), and keys of what is printed as
# JSON: a knob of that name could not be given, or would hide another number.
TAKEN = (
    *("job", "policy", "knobs", "barrier", "jitter", "seed", "model", "optimizer", "lanes"),
    *("verify", "trace", "timeout_s", "sync", "workers", "servers", "separate", "colocated"),
    *("keys", "plaintext"),
    *("shared_link", "bandwidth", "overhead", "latency", "floor", "slow", "slow_factor"),
    *("compute_factors", "layers", "tensors", "operations", "fastest"),
)


@dataclass(frozen=True)
class Knob:
    """One number that a policy lets users and tuners turn."""

    name: str
    help: str
    """One sentence: what it sets."""
    default: float | None = None
    """None: without a value, the knob has no effect."""
    kind: Kind = "bytes"
    """A size, a whole number, or any number."""
    least: float = 1
    most: float = LARGEST
    times: str = ""
    """Name of another knob: ``default`` and ``usual`` are multiples of its value."""
    usual: tuple[float, ...] = ()
    """Values that a tuner or a grid tries."""

    def __post_init__(self) -> None:
        name = self.name
        if not (isinstance(name, str) and name.isidentifier() and name.islower()):
            raise InputError(f"a knob is called {shown(name)}; use small letters, digits and _")
        if name in TAKEN or name.endswith(SIZE_SUFFIX):
            raise InputError(f"a knob cannot be called {name}, which is reserved; choose another")
        if not self.help:
            raise InputError(f"knob {name} has no help; say in one sentence what it sets")
        if self.kind not in ("bytes", "count", "number"):
            raise InputError(f"knob {name} is of kind {shown(self.kind)}; use bytes, count, number")
        if self.default is not None and not self.times:
            self.require(self.default)

    @property
    def key(self) -> str:
        """Return the name with its unit, as in JSON and in the fields of Knobs."""
        return self.name + SIZE_SUFFIX if self.kind == "bytes" else self.name

    def with_default(self, default: float | None) -> "Knob":
        """Declare the same knob for another policy."""
        return replace(self, default=default)

    def read(self, text: Any) -> float:
        """Parse a value from the command line or from Python."""
        if self.kind == "bytes":
            try:
                return parse_bytes(text)
            except UnitError as error:
                raise UnitError(f"{self.name}: {error}") from None
        if isinstance(text, str):
            text = self._parsed(text)
        return as_whole(text, self.name) if self.kind == "count" else as_number(text, self.name)

    def _parsed(self, text: str) -> float:
        try:
            return int(text) if self.kind == "count" else float(text)
        except ValueError:
            what = "a whole number" if self.kind == "count" else "a number"
            raise InputError(f"{self.name} is {shown(text)}; it must be {what}") from None

    def require(self, value: Any) -> float:
        """Return a value of the right kind and within the range, or say what would be right."""
        plain = as_number if self.kind == "number" else as_whole
        number = plain(value, self.key)
        if not self.least <= number <= self.most:
            fitting = ", and fit in 64 bits" if self.most == LARGEST else ""
            raise InputError(
                f"{self.key} is {shown(value)}; it must be {self.range_in_words}{fitting}"
            )
        return number

    def default_among(self, values: Mapping[str, float]) -> float | None:
        """Return the default, given the values of the knobs that were declared before, by name."""
        if self.default is None or not self.times:
            return self.default
        return self.default * values[self.times]

    def show(self, value: float) -> str:
        """Print a value with its unit."""
        return format_bytes(int(value)) if self.kind == "bytes" else f"{value:g}"

    @property
    def default_in_words(self) -> str:
        if self.default is None:
            return "off"
        if self.times:
            return f"{self.default:g} x {self.times}"
        return self.show(self.default)

    @property
    def range_in_words(self) -> str:
        if self.most == LARGEST:
            return f"{self.least:g} or more"
        return f"{self.show(self.least)} to {self.show(self.most)}"


MEBIBYTE = 2**20
PARTITION = Knob(
    "partition",
    "Maximum size of an operation, e.g. 4MiB.",
    usual=tuple(2**power for power in range(16, 27)),
)
CREDIT = Knob(
    "credit",
    "Bytes in flight at which the next operation waits, e.g. 16MiB.",
    times="partition",
    usual=(1, 2, 3, 4, 6, 8, 12, 16),
)
FUSION = Knob(
    "fusion",
    "Maximum size of a group of tensors sent as one operation, e.g. 25MiB.",
    usual=tuple(count * MEBIBYTE for count in (1, 2, 4, 8, 16, 25, 32, 64)),
)
FIRST = Knob(
    "first",
    "Size of the first unit, which is sent alone; each next unit doubles, up to the partition.",
    usual=tuple(2**power for power in range(15, 21)),
)
PERMUTATION = Knob(
    "permutation",
    "Which random order is taken; the seed of a simulation, if that is given.",
    default=0,
    kind="count",
    least=0,
)
FAMILIAR = (PARTITION, CREDIT, FUSION, FIRST)
"""Knobs that mean the same under every policy that declares them."""
