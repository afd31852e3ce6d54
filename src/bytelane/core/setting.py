"""Settings that a tuner chooses, the space of them, and trials: how long an iteration took."""

from collections.abc import Iterator
from itertools import product
from math import prod

import msgspec

from bytelane.cluster import Cluster
from bytelane.core.knobs import Knobs
from bytelane.core.policy import choose_knobs, policy_entry
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.knob import SIZE_SUFFIX
from bytelane.units import format_bytes, format_seconds
from bytelane.values import as_number


class Setting(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that decides on a plan, beside the job and the network: plain data."""

    policy: str
    knobs: Knobs = Knobs()
    ratio: float | None = None
    """Plan the order as if communication took this many times as long as computing; None: the
    planner's default."""
    in_ready_order: bool = False
    """Send the same pieces without overtaking."""

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0 < as_number(self.ratio, "ratio") < float("inf"):
            raise InputError(f"ratio is {self.ratio}; it must be above 0 and finite")

    def __str__(self) -> str:
        """Name it in one line: ``units, partition 512 KiB, credit 1 MiB, ratio 1.25``."""
        words = [self.policy]
        for key, value in self.knobs.values.items():
            is_size = key.endswith(SIZE_SUFFIX)
            shown = format_bytes(int(value)) if is_size else f"{value:g}"
            words.append(f"{key.removesuffix(SIZE_SUFFIX)} {shown}")
        if self.ratio is not None:
            words.append(f"ratio {self.ratio:g}")
        if self.in_ready_order:
            words.append("in ready order")
        return ", ".join(words)


class Context(msgspec.Struct, frozen=True):
    """Where a setting is tried: the model as measured, and the network if that was measured."""

    job: Job
    cluster: Cluster | None = None


class Trial(msgspec.Struct, frozen=True):
    """The result of running a setting: either the time per iteration, or why it failed."""

    setting: Setting
    seconds: float | None = None
    """Per iteration."""
    failure: str = ""
    """One sentence."""
    context: Context | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (not self.failure):
            raise InputError("a trial has either seconds or a failure; give one of them")

    def __str__(self) -> str:
        if self.seconds is None:
            return f"{self.setting} failed: {self.failure}"
        return f"{format_seconds(self.seconds)} with {self.setting}"


class Space(msgspec.Struct, frozen=True):
    """The settings that a tuner may ask for: policies with all usual values of their knobs."""

    policies: tuple[str, ...]
    ratios: tuple[float | None, ...] = (None,)

    def __len__(self) -> int:
        return sum(prod(map(len, self._axes(policy))) for policy in self.policies)

    def __iter__(self) -> Iterator[Setting]:
        """Yield all of them: knobs by the policies' declarations, the last one fastest."""
        for policy in self.policies:
            knobs = policy_entry(policy).knobs
            for ratio, *chosen in product(*self._axes(policy)):
                values: dict[str, float] = {}
                for knob, value in zip(knobs, chosen, strict=True):
                    if value is not None:
                        values[knob.name] = value * values[knob.times] if knob.times else value
                by_key = {knob.key: values.get(knob.name) for knob in knobs}
                yield Setting(policy, choose_knobs(policy, **by_key), ratio)

    def __contains__(self, setting: object) -> bool:
        return any(setting == one for one in self)

    def _axes(self, policy: str) -> list[tuple[float | None, ...]]:
        """Return the ratios, and for each knob the values to try; (None,) keeps its default."""
        return [self.ratios, *(knob.usual or (None,) for knob in policy_entry(policy).knobs)]
