"""The functions of ``import bytelane``: simulate, prepare, replan, status, no_sync, flush, join.

This is the composition root: the only module that imports all packages and connects them.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from bytelane import plugins
from bytelane.cluster import Cluster, Link, Sync
from bytelane.core import (
    Knobs,
    PlannedBy,
    Planner,
    Policy,
    Setting,
    find_knob,
    make_policy,
    policy_entry,
    policy_names,
    require_knob,
)
from bytelane.core import choose_knobs as _choose_knobs
from bytelane.core.protocols import PlanFunction
from bytelane.errors import InputError, MissingExtra, NotSupported, UnitError
from bytelane.foreign.names import is_too_old, usable_torch
from bytelane.job import Job, load, zoo
from bytelane.knob import PERMUTATION
from bytelane.sim import Jitter, ServerPlanner, Simulation, make_planner
from bytelane.sim import simulate as _simulate
from bytelane.sim.sweep import make_settings
from bytelane.terminal import announce
from bytelane.units import LONGEST_S, parse_rate, parse_seconds
from bytelane.values import as_number, as_whole, nearest, require_flag, shown

AUTO = "auto"
# Without a search yet: small parts in the order of need, two in flight to every server.
_AUTO_WITH_SERVERS = ("units", Knobs(partition_bytes=2**18, credit_bytes=2**19))

_Given = TypeVar("_Given")
_Number = TypeVar("_Number", int, float)

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from bytelane.runtime.torch.server_carrier import ServerSettings
    from bytelane.runtime.torch.status import Status
    from bytelane.trace.recording import Recorder

    Optimizers = TypeVar("Optimizers", torch.optim.Optimizer, Sequence[torch.optim.Optimizer])


def simulate(
    job: Job | str | Path,
    *,
    policy: str = "bytescheduler",
    partition: str | int | None = None,
    credit: str | int | None = None,
    fusion: str | int | None = None,
    barrier: bool | None = None,
    jitter: float = 0.0,
    seed: int | None = None,
    **others: Any,
) -> Simulation:
    """Predict the steady state of a job (or a job file) on a cluster.

    ``seed`` is that of the jitter and of policy ``random``.
    The other keywords describe the cluster, as in :func:`make_cluster`, or are further knobs of the
    policy, by their names.
    """
    knobs, cluster = _split_keywords([policy], others)
    as_number(jitter, "jitter")
    if seed is not None:
        as_whole(seed, "seed")
        if policy_entry(policy).knob(PERMUTATION.name) is not None:
            knobs.setdefault(PERMUTATION.name, seed)
        elif not jitter:
            raise InputError("a seed has no effect without jitter; leave it out")
    job = job if isinstance(job, Job) else find_job(job)
    where = make_cluster(**cluster)
    chosen = choose_knobs(policy, partition, credit, fusion, **knobs)
    schedule = _with_barrier(make_policy(policy, job, where, chosen), barrier)
    noise = Jitter(jitter, seed or 0) if jitter else None
    return _simulate(job, where, schedule, jitter=noise, knobs=chosen)


def simulate_each(
    job: Job,
    policies: Sequence[str],
    *,
    partition: str | int | None = None,
    credit: str | int | None = None,
    fusion: str | int | None = None,
    barrier: bool | None = None,
    **others: Any,
) -> list[Simulation]:
    """Predict a job under several policies; each knob goes to the policies that declare it."""
    knobs, cluster = _split_keywords(policies, others)
    values = {}
    for name, given in _given(partition, credit, fusion, knobs).items():
        knob = find_knob(policies, name)
        values[knob.key] = [knob.read(given)]
    where = make_cluster(**cluster)
    return [
        _simulate(
            job,
            where,
            _with_barrier(make_policy(setting.policy, job, where, setting.knobs), barrier),
            knobs=setting.knobs,
        )
        for setting in make_settings([job], [where], policies, values)
    ]


def _split_keywords(
    policies: Iterable[str], others: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate further knobs of the policies from keywords of :func:`make_cluster`."""
    for policy in policies:
        plugins.look_for(policy)
    cluster = {*inspect.signature(make_cluster).parameters}
    _require_keywords({name: others[name] for name in others.keys() - cluster}, cluster)
    knobs = {name: value for name, value in others.items() if name not in cluster}
    return knobs, {name: value for name, value in others.items() if name in cluster}


def _require_keywords(given: Mapping[str, object], more: Iterable[str] = ()) -> None:
    """Refuse a keyword that no policy declares as a knob."""
    knobs = {knob.name for name in policy_names() for knob in policy_entry(name).knobs}
    known = {*inspect.signature(simulate).parameters, *knobs, *more} - {"others"}
    for name in sorted(given.keys() - knobs):
        value = shown(given[name])
        raise InputError(f"there is no argument {name} (it is {value}){nearest(name, known)}")


def _with_barrier(policy: Policy, barrier: bool | None) -> Policy:
    if barrier is None:
        return policy
    require_flag(barrier, "barrier")
    if policy.preemptive:
        raise InputError("the optimum has no barrier; leave barrier out")
    return msgspec.structs.replace(policy, barrier=barrier)


def find_job(name: str | Path, *, accelerator: str | None = None, batch: int | None = None) -> Job:
    """Return a model of the zoo by its name, or the job in a file."""
    if not isinstance(name, str | Path):
        raise InputError(f"a job is a Job, a name or a path, not {shown(name)}")
    if str(name) in zoo.names():
        return zoo.make(str(name), accelerator=accelerator, batch=batch)
    if Path(name).suffix not in (".toml", ".json"):
        hint = nearest(str(name), zoo.names())
        raise InputError(
            f"{shown(str(name))} is neither a job file (.toml or .json) nor a model of the zoo"
            f"{hint} (bytelane zoo lists them)"
        )
    if accelerator is not None or batch is not None:
        raise InputError("a job file has its own times; accelerator and batch are for the zoo")
    return load(name)


def make_cluster(
    *,
    workers: int = 2,
    bandwidth: str = "10Gbit",
    overhead: str = "0us",
    latency: str = "0us",
    floor: str = "0us",
    sync: str = "allreduce",
    servers: int | None = None,
    separate: bool = False,
    shared_link: bool = False,
    slow: float = 1.0,
) -> Cluster:
    """Describe equal workers, of which the last may compute slower by a factor.

    With ``sync="ps"`` there are as many servers as workers, on the workers' hosts or on hosts of
    their own (``separate``), where ``servers`` may be another number. On the workers' hosts pushes
    use one direction of a link and pulls the other, as in the literature, or both take turns on it,
    as on real hosts (``shared_link``).
    """
    if sync not in ("allreduce", "ps"):
        raise InputError(f"there is no way to synchronise called {sync!r}; use allreduce or ps")
    if sync == "allreduce" and (servers is not None or separate or shared_link):
        raise InputError("an all-reduce has no servers; leave them out, or use sync ps")
    as_whole(workers, "workers")
    count = workers if servers is None else as_whole(servers, "servers")
    as_number(slow, "slow")
    require_flag(separate, "separate")
    require_flag(shared_link, "shared_link")
    if sync == "ps" and count < 1:
        raise InputError(f"servers is {shown(count)}; it must be 1 or more")
    link = Link(
        _read("bandwidth", bandwidth, parse_rate),
        overhead_s=_read("overhead", overhead, parse_seconds),
        latency_s=_read("latency", latency, parse_seconds),
        floor_s=_read("floor", floor, parse_seconds),
    )
    servers = count if sync == "ps" else 0
    equal = Cluster.star(workers, link, servers, not separate, (), shared_link)
    if slow == 1.0:
        return equal
    # Cluster.star has refused too many workers: a tuple of factors would fill the memory.
    return equal.with_compute_factors((1.0,) * (workers - 1) + (slow,))


def choose_knobs(
    policy: str,
    partition: str | int | None = None,
    credit: str | int | None = None,
    fusion: str | int | None = None,
    **others: str | float | None,
) -> Knobs:
    """Read the knobs that were given; the others get the policy's defaults.

    Other keywords are further knobs of the policy, by their names.
    """
    plugins.look_for(policy)
    values = {}
    for name, given in _given(partition, credit, fusion, others).items():
        knob = require_knob(policy, name)
        values[knob.key] = knob.read(given)
    return _choose_knobs(policy, **values)


def _given(
    partition: str | int | None,
    credit: str | int | None,
    fusion: str | int | None,
    others: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the knobs that were given, by their names."""
    every = {"partition": partition, "credit": credit, "fusion": fusion, **others}
    return {name: value for name, value in every.items() if value is not None}


def _read(name: str, text: _Given, parse: Callable[[_Given], _Number]) -> _Number:
    """Parse a quantity; an error names the argument."""
    try:
        return parse(text)
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None


def prepare(
    model: "torch.nn.Module",
    optimizer: "Optimizers",
    *,
    policy: "str | Planner | PlanFunction" = "auto",
    partition: str | int | None = None,
    credit: str | int | None = None,
    fusion: str | int | None = None,
    barrier: bool | None = None,
    lanes: int | None = None,
    verify: bool = False,
    trace: str | Path | None = None,
    timeout_s: float = 1800.0,
    sync: Sync = "allreduce",
    servers: Sequence[str] = (),
    keys: str | Path | None = None,
    plaintext: bool = False,
    **knobs: str | float | None,
) -> "tuple[torch.nn.Module, Optimizers]":
    """Make this model train in data parallel with the other ranks; return the same two objects.

    Call it after ``init_process_group`` and before the first forward pass, on every rank, instead
    of wrapping the model in DistributedDataParallel. The first three iterations are measured with
    plain buckets; then the policy's plan takes over. ``auto`` measures the network too, and asks
    the simulator which pieces in which order are best; where scheduling gains nothing, it takes the
    best plain buckets. Instead of a name, ``policy`` may be a :class:`~bytelane.core.Planner`, or a
    function that makes a plan from a job, a cluster and a version.

    ``partition``, ``credit``, ``fusion`` and other keywords are the knobs of the policy.
    ``optimizer`` may be a list of optimizers. ``barrier`` overrides whether every step waits for
    all tensors. ``lanes`` (default 1) is the number of lanes that carry operations in turn, each on
    connections of its own. ``verify`` compares all weights between ranks before every backward pass
    (slow). ``trace`` is a file for plans and events, which ``bytelane replay`` reads; ``{rank}`` in
    it is replaced by the rank, and without it only rank 0 writes. If the trace can no longer be
    written, e.g. on a full disk, it ends; training goes on. ``timeout_s`` is how long a rank waits
    for another one that is neither dead nor frozen, but late, before it raises an error.

    ``sync="ps"`` sums gradients on parameter servers: a process beside every rank, or ``servers``
    (a list of ``"HOST:PORT"``) that run ``bytelane ps serve``. Servers on other hosts need
    ``keys``, the folder of ``bytelane ps keygen``, or ``plaintext=True`` on a trusted network.
    """
    runtime = _runtime()
    _require_keywords(knobs, inspect.signature(prepare).parameters.keys() - {"knobs"})
    optimizers = optimizer if isinstance(optimizer, Sequence) else [optimizer]
    require_flag(verify, "verify")
    _require_seconds(timeout_s)
    served = _server_settings(sync, servers, keys, plaintext)
    settings = runtime.Settings(
        _find_planner(policy, _given(partition, credit, fusion, knobs), barrier, lanes, sync=sync),
        probe=_probe,
        servers=served,
        timeout_s=timeout_s,
        verify=verify,
        recorder=_recorder(trace, sync),
    )
    runtime.attach(model, optimizers, settings)
    return model, optimizer


def _find_planner(
    policy: "str | Planner | PlanFunction",
    knobs: dict[str, Any],
    barrier: bool | None,
    lanes: int | None,
    known: Planner | None = None,
    sync: Sync = "allreduce",
) -> Planner:
    """Return the planner for ``policy``; ``known`` is the model's planner for ``auto``, if any."""
    if sync == "ps":
        return _server_planner(policy, knobs, barrier, lanes)
    if isinstance(policy, str) and policy != AUTO:
        if barrier is not None:
            require_flag(barrier, "barrier")
        chosen = choose_knobs(policy, **knobs)
        return make_planner(policy, chosen, barrier, lanes=_one_unless(lanes))
    whose = f"policy {AUTO}, which chooses it itself" if policy == AUTO else "a planner of your own"
    for name, given in (knobs | {"barrier": barrier, "lanes": lanes}).items():
        if given is not None:
            raise InputError(f"{name} has no effect under {whose}")
    if policy != AUTO:
        return _own_planner(policy)
    from bytelane.tune import AutoPlanner

    return known or AutoPlanner(say=announce)


def _server_planner(
    policy: "str | Planner | PlanFunction",
    knobs: dict[str, Any],
    barrier: bool | None,
    lanes: int | None,
) -> Planner:
    if not isinstance(policy, str):
        raise InputError("with parameter servers every rank decides by a policy: give its name")
    if lanes is not None:
        raise InputError("lanes have no effect with parameter servers; leave them out")
    if barrier is not None:
        require_flag(barrier, "barrier")
    if policy != AUTO:
        return ServerPlanner(Setting(policy, choose_knobs(policy, **knobs)), barrier)
    for name in knobs:
        raise InputError(f"{name} has no effect under policy {AUTO}, which chooses it itself")
    return ServerPlanner(Setting(*_AUTO_WITH_SERVERS), barrier, AUTO)


def _server_settings(
    sync: Sync, servers: Sequence[str], keys: str | Path | None, plaintext: bool
) -> "ServerSettings | None":
    """Return which servers are meant; None for all-reduce."""
    if sync not in ("allreduce", "ps"):
        raise InputError(f"there is no sync {shown(sync)}; use allreduce or ps")
    require_flag(plaintext, "plaintext")
    if sync == "allreduce":
        if servers or keys is not None or plaintext:
            raise InputError('servers, keys and plaintext are for parameter servers: sync="ps"')
        return None
    from bytelane.runtime.ps.address import parse_address
    from bytelane.runtime.ps.keys import require_zmq
    from bytelane.runtime.torch.server_carrier import ServerSettings

    require_zmq()
    if isinstance(servers, str):
        raise InputError(f"servers is {shown(servers)}; it must be a list of HOST:PORT")
    known = {parse_address(address) for address in servers}
    if len(known) < len(servers):
        raise InputError("a parameter server is given twice; give every address once")
    return ServerSettings(tuple(servers), None if keys is None else Path(keys), plaintext)


def _own_planner(policy: Any) -> Planner:
    """Return a user's object as it is, and a user's function as a planner."""
    parts = ("name", "needs_network", "plan", "observe", "summarise")
    if all(hasattr(policy, part) for part in parts) and not isinstance(policy, type):
        return policy  # type: ignore[no-any-return]
    if callable(policy) and not isinstance(policy, type):
        return PlannedBy(policy)
    raise InputError(
        f"policy is {shown(policy)}; it must be a name, a Planner, or a function that plans"
    )


def _probe(group: "dist.ProcessGroup") -> Link:
    """Measure the network, if a planner needs that."""
    from bytelane.tune.probe import probe

    return probe(group)


def _one_unless(lanes: int | None) -> int:
    return 1 if lanes is None else lanes


def replan(
    model: "torch.nn.Module",
    *,
    policy: "str | Planner | PlanFunction",
    partition: str | int | None = None,
    credit: str | int | None = None,
    fusion: str | int | None = None,
    barrier: bool | None = None,
    lanes: int | None = None,
    **knobs: str | float | None,
) -> None:
    """Change the plan of a prepared model while it trains, at a step that all ranks agree on.

    Rank 0 decides; on other ranks the call has no effect. ``policy`` is what :func:`prepare`
    takes; ``auto`` hands control back to the search, which measures model and
    network again.
    """
    session = _runtime().find_session(model)
    _require_keywords(knobs, ["model", "lanes"])
    known = None if session is None else session.find_planner(AUTO)
    given = _given(partition, credit, fusion, knobs)
    sync: Sync = "allreduce" if session is None else session.carrier.sync
    planner = _find_planner(policy, given, barrier, lanes, known, sync)
    if session is not None:
        session.propose(planner)


def status(model: "torch.nn.Module") -> "Status | None":
    """Return the training status of a prepared model; None with only one worker."""
    session = _runtime().find_session(model)
    found: Status | None = None if session is None else session.status()
    return found


def _require_seconds(timeout_s: float) -> None:
    if not 0 < as_number(timeout_s, "timeout_s") <= LONGEST_S:
        raise InputError(f"timeout_s is {timeout_s}; it must be above 0 and at most {LONGEST_S:g}")


def _recorder(trace: str | Path | None, sync: Sync) -> "Recorder | None":
    if trace is None:
        return None
    if not isinstance(trace, str | Path):
        raise InputError(f"trace is {shown(trace)}; it must be the path of a file")
    if sync == "ps":
        raise NotSupported("trace is not supported with parameter servers yet; leave it out")
    import torch.distributed as dist

    from bytelane.trace.recording import Recorder

    rank = dist.get_rank() if dist.is_initialized() else 0
    path = str(trace).replace("{rank}", str(rank))
    return Recorder(Path(path)) if rank == 0 or "{rank}" in str(trace) else None


def no_sync(model: "torch.nn.Module") -> AbstractContextManager[None]:
    """Accumulate gradients on this rank; the next backward pass outside sums them over ranks."""
    manager: AbstractContextManager[None] = _runtime().no_sync(model)
    return manager


def flush(model: "torch.nn.Module") -> None:
    """Bring all weights and gradients of a prepared model up to date on this rank.

    A torch function that reads a parameter does that by itself. Call this before other code reads
    one: numpy or C++ code that shares its memory, another thread. It waits for transfers that the
    other ranks take part in, and makes every update that step() has deferred. With
    one worker there is nothing to do.
    """
    _runtime().flush(model)


def join(model: "torch.nn.Module") -> AbstractContextManager[None]:
    """Train with uneven inputs: a rank that has no data left waits here for the others."""
    manager: AbstractContextManager[None] = _runtime().join(model)
    return manager


@cache
def _runtime() -> ModuleType:
    try:
        import torch
    except ImportError:
        raise MissingExtra(
            "training needs PyTorch; install it with: pip install 'bytelane[torch]'"
        ) from None
    version = f"torch {torch.__version__}"
    if is_too_old(torch.__version__):
        raise NotSupported(f"{version} is too old for training; use {usable_torch()}")
    try:
        from bytelane.runtime import torch as runtime
    except (ImportError, AttributeError) as error:
        raise NotSupported(
            f"{version} lacks something that training needs; use {usable_torch()} ({error})"
        ) from error
    return runtime
