"""The composition root: the only room that knows all others, and hands each what it needs."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from bytelane import plugins
from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, Policy, make_policy
from bytelane.core import choose_knobs as _choose_knobs
from bytelane.errors import InputError, MissingExtra, UnitError
from bytelane.job import Job, load, zoo
from bytelane.sim import Jitter, Simulation, make_planner
from bytelane.sim import simulate as _simulate
from bytelane.sim.sweep import make_settings
from bytelane.terminal import announce
from bytelane.units import LONGEST_S, parse_bytes, parse_rate, parse_seconds
from bytelane.values import as_number, as_whole, nearest, require_flag, shown

_Given = TypeVar("_Given")
_Number = TypeVar("_Number", int, float)

if TYPE_CHECKING:
    import torch

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
    **cluster: Any,
) -> Simulation:
    """Predict the steady state of a job (or a job file) on a cluster.

    The other keywords describe the cluster, as in :func:`make_cluster`.
    """
    _require_keywords(cluster)
    if seed is not None:
        as_whole(seed, "seed")
    if not as_number(jitter, "jitter") and seed is not None:
        raise InputError("a seed has no effect without jitter; leave it out")
    job = job if isinstance(job, Job) else find_job(job)
    where = make_cluster(**cluster)
    knobs = choose_knobs(policy, partition, credit, fusion)
    schedule = _with_barrier(make_policy(policy, job, where, knobs), barrier)
    return _simulate(job, where, schedule, jitter=Jitter(jitter, seed or 0) if jitter else None)


def simulate_each(
    job: Job,
    policies: Sequence[str],
    *,
    partition: str | int | None = None,
    credit: str | int | None = None,
    fusion: str | int | None = None,
    barrier: bool | None = None,
    **cluster: Any,
) -> list[Simulation]:
    """Predict a job under several policies; a knob goes to those that have a use for it."""
    _require_keywords(cluster)
    for policy in policies:
        plugins.look_for(policy)
    given = _read_sizes(partition=partition, credit=credit, fusion=fusion)
    sizes = {f"{name}_bytes": [size] for name, size in given.items()}
    where = make_cluster(**cluster)
    return [
        _simulate(
            job,
            where,
            _with_barrier(make_policy(setting.policy, job, where, setting.knobs), barrier),
        )
        for setting in make_settings([job], [where], policies, sizes)
    ]


def _require_keywords(given: Mapping[str, object]) -> None:
    """Refuse what is neither a keyword of the caller nor one of :func:`make_cluster`."""
    known = {*inspect.signature(simulate).parameters, *inspect.signature(make_cluster).parameters}
    for name in sorted(given.keys() - known):
        value = shown(given[name])
        raise InputError(f"there is no argument {name} (it is {value}){nearest(name, known)}")


def _with_barrier(policy: Policy, barrier: bool | None) -> Policy:
    if barrier is None:
        return policy
    require_flag(barrier, "barrier")
    if policy.preemptive:
        raise InputError("the optimum knows no barrier; leave that out")
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

    With ``sync="ps"`` there are as many servers as workers on the same hosts, or ``servers`` of
    them on hosts of their own (``separate``). On the same hosts pushes and pulls have a direction
    each, as in the literature, or, as it really is, one link for both (``shared_link``).
    """
    if sync not in ("allreduce", "ps"):
        raise InputError(f"there is no way to synchronise called {sync!r}; use allreduce or ps")
    if sync == "allreduce" and (servers is not None or separate or shared_link):
        raise InputError("an all-reduce has no servers; use them with ps")
    as_whole(workers, "workers")
    count = workers if servers is None else as_whole(servers, "servers")
    as_number(slow, "slow")
    require_flag(separate, "separate")
    require_flag(shared_link, "shared_link")
    if sync == "ps" and count < 1:
        raise InputError(f"{shown(count)} servers cannot serve anybody; use 1 or more")
    times = {"overhead": overhead, "latency": latency, "floor": floor}
    link = Link(
        _read("bandwidth", bandwidth, parse_rate),
        *(_read(name, text, parse_seconds) for name, text in times.items()),
    )
    servers = count if sync == "ps" else 0
    equal = Cluster(workers, link, servers, not separate, (), shared_link)
    if slow == 1.0:
        return equal
    # Only now is it known that there are not too many of them for a row each.
    return msgspec.structs.replace(equal, compute_factors=(1.0,) * (workers - 1) + (slow,))


def choose_knobs(
    policy: str,
    partition: str | int | None = None,
    credit: str | int | None = None,
    fusion: str | int | None = None,
) -> Knobs:
    """Read what was given; what was left open is the policy's own choice."""
    plugins.look_for(policy)
    sizes = _read_sizes(partition=partition, credit=credit, fusion=fusion)
    return _choose_knobs(policy, *(sizes.get(name) for name in ("partition", "credit", "fusion")))


def _read_sizes(**given: str | int | None) -> dict[str, int]:
    """Read the sizes that were given."""
    return {
        name: _read(name, size, parse_bytes) for name, size in given.items() if size is not None
    }


def _read(name: str, text: _Given, parse: Callable[[_Given], _Number]) -> _Number:
    """Read a quantity; a refusal names the argument that it was given as."""
    try:
        return parse(text)
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None


def prepare(
    model: "torch.nn.Module",
    optimizer: "Optimizers",
    *,
    policy: str = "auto",
    partition: str | int | None = None,
    credit: str | int | None = None,
    fusion: str | int | None = None,
    barrier: bool | None = None,
    lanes: int | None = None,
    verify: bool = False,
    trace: str | Path | None = None,
    timeout_s: float = 1800.0,
) -> "tuple[torch.nn.Module, Optimizers]":
    """Make this model train in data parallel with the other ranks; return the same two objects.

    Call it after ``init_process_group`` and before the first forward pass, on every rank, instead
    of wrapping the model in DistributedDataParallel. The first three iterations are measured with
    plain buckets; then the policy's plan takes over. ``auto`` measures the network too, and asks
    the simulator which pieces in which order are best; where there is nothing to win, it takes the
    best plain buckets.

    ``optimizer`` may be a list of optimizers. ``barrier`` overrides whether every step waits for
    all tensors. ``lanes`` (one if left out) carry operations by turns, each on connections of its
    own. ``verify`` compares all weights between ranks before every backward pass (slow). ``trace``
    is a file for plans and events, which ``bytelane replay`` reads; ``{rank}`` in it is replaced,
    and without that only rank 0 writes. A trace that can no longer be written, say on a full disk,
    ends; training goes on.
    """
    runtime = _runtime()
    optimizers = optimizer if isinstance(optimizer, Sequence) else [optimizer]
    require_flag(verify, "verify")
    if not 0 < as_number(timeout_s, "timeout_s") <= LONGEST_S:
        raise InputError(f"timeout_s is {timeout_s}; it must be above 0 and at most {LONGEST_S:g}")
    if not isinstance(trace, str | Path | None):
        raise InputError(f"trace is {shown(trace)}; it must be the path of a file")
    recorder = None if trace is None else _recorder(trace)
    runtime.attach(
        model,
        optimizers,
        **_planning(policy, partition, credit, fusion, barrier, lanes),
        timeout_s=timeout_s,
        verify=verify,
        recorder=recorder,
    )
    return model, optimizer


def _planning(
    policy: str,
    partition: str | int | None,
    credit: str | int | None,
    fusion: str | int | None,
    barrier: bool | None,
    lanes: int | None,
) -> dict[str, Any]:
    """Return who plans, and what he needs to be told."""
    if policy != "auto":
        if barrier is not None:
            require_flag(barrier, "barrier")
        knobs = choose_knobs(policy, partition, credit, fusion)
        return {"planner": make_planner(policy, knobs, barrier, lanes=_one_unless(lanes))}
    for name, given in (
        ("partition", partition),
        ("credit", credit),
        ("fusion", fusion),
        ("barrier", barrier),
        ("lanes", lanes),
    ):
        if given is not None:
            raise InputError(f"{name} has no effect under policy auto, which chooses it itself")
    from bytelane.tune import AutoPlanner
    from bytelane.tune.page import print_page
    from bytelane.tune.probe import probe

    planner = AutoPlanner(say=announce)
    return {
        "planner": planner,
        "probe": probe,
        "review": planner.review,
        "farewell": lambda status, **since: print_page(
            planner.choice, status.iteration_s, status.link_busy_s, **since
        ),
    }


def _one_unless(lanes: int | None) -> int:
    return 1 if lanes is None else lanes


def replan(
    model: "torch.nn.Module",
    *,
    policy: str,
    partition: str | int | None = None,
    credit: str | int | None = None,
    fusion: str | int | None = None,
    barrier: bool | None = None,
    lanes: int | None = None,
) -> None:
    """Change the plan of a prepared model while it trains, at a step that all ranks agree on.

    What rank 0 asks for is done; on other ranks the call has no effect.
    """
    session = _runtime().find_session(model)
    if barrier is not None:
        require_flag(barrier, "barrier")
    knobs = choose_knobs(policy, partition, credit, fusion)
    planner = make_planner(policy, knobs, barrier, lanes=_one_unless(lanes))
    if session is not None:
        session.propose(planner)
        if session.farewell is not None:
            session.farewell = partial(session.farewell, replanned=policy)


def status(model: "torch.nn.Module") -> "Status | None":
    """Say how the training of a prepared model is going; None where there is only one worker."""
    session = _runtime().find_session(model)
    found: Status | None = None if session is None else session.status()
    return found


def _recorder(trace: str | Path) -> "Recorder | None":
    import torch.distributed as dist

    from bytelane.trace.recording import Recorder

    rank = dist.get_rank() if dist.is_initialized() else 0
    path = str(trace).replace("{rank}", str(rank))
    return Recorder(Path(path)) if rank == 0 or "{rank}" in str(trace) else None


def no_sync(model: "torch.nn.Module") -> AbstractContextManager[None]:
    """Let gradients only add up on this rank; the next backward pass outside sums them all."""
    manager: AbstractContextManager[None] = _runtime().no_sync(model)
    return manager


def join(model: "torch.nn.Module") -> AbstractContextManager[None]:
    """Train with uneven inputs: a rank that has no data left waits here for the others."""
    manager: AbstractContextManager[None] = _runtime().join(model)
    return manager


def _runtime() -> ModuleType:
    try:
        from bytelane.runtime import torch as runtime
    except ImportError:
        raise MissingExtra(
            "training needs PyTorch; install it with: pip install 'bytelane[torch]'"
        ) from None
    return runtime
