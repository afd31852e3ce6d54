"""The result of profiling: a job, and the spread of its times."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from bytelane.errors import InputError, NotSupported
from bytelane.job import Job, Layer, Tensor
from bytelane.measure.attribution import (
    STAGES,
    Measured,
    Part,
    Slice,
    divide,
    mark_cost,
    measured,
    total,
    typical,
)
from bytelane.measure.record import Iteration

LOSS = "(loss)"
# With more than this fraction between the quartiles, the times are uncertain.
NOISY = 0.1


class TensorUse(msgspec.Struct, frozen=True):
    """A parameter that is trained."""

    name: str
    bytes: int
    users: frozenset[str]
    """The modules that use it."""


class LayerTime(msgspec.Struct, frozen=True):
    """One call of a module; its medians are the job's own."""

    name: str
    forward: Measured
    backward: Measured


class Profile(msgspec.Struct, frozen=True):
    """A measured job; its times add up to those of an iteration without hooks."""

    job: Job
    iteration: Measured
    """Without hooks."""
    observed: Measured
    """With hooks."""
    marks: int
    """Number of marks per observed iteration."""
    mark_s: float
    """Cost of a mark, which is subtracted."""
    stages: dict[str, Measured]
    layers: tuple[LayerTime, ...]
    counted: int
    """Number of observed iterations in the medians."""
    notes: tuple[str, ...]
    """Remarks about the times, in sentences."""

    @property
    def overhead_s(self) -> float:
        """Time that the hooks add to an iteration, noise included."""
        return self.observed.median_s - self.iteration.median_s


def make_profile(
    name: str,
    iterations: Sequence[Iteration],
    tensors: Sequence[TensorUse],
    mark_s: float,
    notes: Sequence[str],
) -> Profile:
    """Make a profile of observed iterations and of others without hooks among them.

    ``mark_s`` is the cost of a mark where nothing is computed. Where a mark costs less, as on a GPU
    that lags behind the host anyway, less is subtracted.
    """
    unobserved_s = [one.seconds for one in iterations if not one.calls]
    alike, odd = _alike([one for one in iterations if one.calls])
    observed = [divide(one.marks) for one in alike]
    mark_s = min(mark_s, mark_cost(observed, unobserved_s))
    times = typical(observed, unobserved_s, mark_s)
    calls, gradients = alike[0].calls, frozenset[str]().union(*(one.gradients for one in alike))
    iteration = measured(unobserved_s)
    found = [*notes, *_notes(tensors, gradients, iteration)]
    if odd:
        several = f"{odd} of {odd + len(alike)} iterations"
        found.append(f"{several} are left out: they called other modules, or in another order")
    return Profile(
        job=_job(name, calls, [t for t in tensors if t.name in gradients], times),
        iteration=iteration,
        observed=measured([total(one) for one in observed]),
        marks=len(alike[0].marks) - 1,
        mark_s=mark_s,
        stages=_stages(times, observed),
        layers=_layers(calls, times),
        counted=len(alike),
        notes=tuple(found),
    )


def _alike(observed: Sequence[Iteration]) -> tuple[list[Iteration], int]:
    """Keep the iterations that call the same modules in the same order; count the others."""
    ways = Counter((one.calls, _passes(one)) for one in observed)
    if not ways:
        raise NotSupported("no module with parameters ran in training; there is nothing to profile")
    (way, often), *_ = ways.most_common(1)
    if way[1] > 1:
        raise NotSupported(
            f"backward() runs {way[1]} times in an iteration; gradient accumulation cannot be "
            "profiled yet: use one backward() per step"
        )
    if 2 * often < len(observed) or often < 2:
        raise NotSupported(
            "most iterations call the modules in different orders; a job needs a fixed order"
        )
    alike = [one for one in observed if (one.calls, _passes(one)) == way]
    return alike, len(observed) - often


def _passes(iteration: Iteration) -> int:
    return sum(mark.kind == "backward" for mark in iteration.marks)


def _notes(
    tensors: Sequence[TensorUse], gradients: frozenset[str], iteration: Measured
) -> list[str]:
    notes = []
    unused = [tensor.name for tensor in tensors if tensor.name not in gradients]
    if unused:
        shown = ", ".join(unused[:3]) + (", ..." if len(unused) > 3 else "")
        notes.append(
            f"unused, since they got no gradient: {shown} ({len(unused)} of {len(tensors)})"
        )
    if iteration.spread_s > NOISY * iteration.median_s:
        percent = 100 * iteration.spread_s / iteration.median_s
        notes.append(f"the machine was busy: half of the iterations differ by {percent:.0f} %")
    return notes


def _job(
    name: str,
    calls: Sequence[str],
    tensors: Sequence[TensorUse],
    times: Mapping[Part, Measured],
) -> Job:
    trained = [Tensor(t.name, t.bytes, _used_in(calls, t)) for t in tensors]
    if not trained:
        raise InputError("no parameter got a gradient; there is nothing to synchronise")
    # An optimizer steps all parameters in one call, so its time is divided by their bytes.
    together = sum(tensor.bytes for tensor in trained)
    update_s = [0.0] * (len(calls) + 1)
    for tensor in trained:
        share = tensor.bytes / together
        update_s[tensor.complete_after] += share * _median(times, Part("update"))
    layers = tuple(
        Layer(layer.name, layer.forward.median_s, layer.backward.median_s, update)
        for layer, update in zip(_layers(calls, times), update_s, strict=True)
    )
    outside_s = sum(_median(times, Part(stage)) for stage in ("load", "copy", "other"))
    return Job(name, layers, tuple(trained), outside_s)


def _used_in(calls: Sequence[str], tensor: TensorUse) -> tuple[int, ...]:
    """Return the calls that use a tensor; if none was seen, it is needed from the start."""
    return tuple(i for i, call in enumerate(calls) if call in tensor.users) or (0,)


def _layers(calls: Sequence[str], times: Mapping[Part, Measured]) -> tuple[LayerTime, ...]:
    never = Measured(0.0, 0.0)
    forward = [times.get(Part("forward", i), never) for i in range(len(calls))]
    forward.append(times.get(Part("loss"), never))
    backward = [times.get(Part("backward", i), never) for i in range(len(forward))]
    names = [*_numbered(calls), LOSS]
    return tuple(LayerTime(*row) for row in zip(names, forward, backward, strict=True))


def _numbered(calls: Sequence[str]) -> list[str]:
    """Number repeated calls of a module: name, name#2, name#3."""
    seen = Counter[str]()
    names = []
    for call in calls:
        seen[call] += 1
        names.append(call if seen[call] == 1 else f"{call}#{seen[call]}")
    return names


def _stages(
    times: Mapping[Part, Measured], observed: Sequence[Mapping[Part, Slice]]
) -> dict[str, Measured]:
    """Add up the parts of each stage; the spread is that of the sums."""
    found: dict[str, Measured] = {}
    for stage in STAGES:
        parts = [part for part in times if part.stage == stage]
        if parts:
            sums = [sum(one[p].seconds for p in parts if p in one) for one in observed]
            middle = sum(times[part].median_s for part in parts)
            found[stage] = Measured(middle, measured(sums).spread_s)
    return found


def _median(times: Mapping[Part, Measured], part: Part) -> float:
    return times[part].median_s if part in times else 0.0
