"""``bytelane simulate``: what would an iteration take?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.options import Bandwidth, Credit, JobFile, Json, Partition, Policy, Workers

if TYPE_CHECKING:
    from bytelane.core import Knobs
    from bytelane.sim import Simulation


def simulate(
    job: JobFile,
    workers: Workers = 2,
    bandwidth: Bandwidth = "10Gbit",
    policy: Policy = "bytescheduler",
    partition: Partition = None,
    credit: Credit = None,
    overhead: Annotated[
        str, typer.Option(help="Link time per message beside its bytes.", metavar="TIME")
    ] = "0us",
    latency: Annotated[
        str,
        typer.Option(help="From the last byte until the end is known.", metavar="TIME"),
    ] = "0us",
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the last iterations for Perfetto.", metavar="FILE"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the iteration time of a training job that synchronises by all-reduce.

    Example: bytelane simulate examples/vgg16.toml --workers 4 --bandwidth 10Gbit
    """
    from bytelane.api import choose_knobs
    from bytelane.api import simulate as ask
    from bytelane.trace import save_chrome

    found = ask(
        job,
        workers=workers,
        bandwidth=bandwidth,
        policy=policy,
        partition=partition,
        credit=credit,
        overhead=overhead,
        latency=latency,
    )
    if trace:
        save_chrome([found.trace], trace)
    if as_json:
        _print_json(summary(found, choose_knobs(policy, partition, credit)))
    else:
        _print_text(found)


def summary(found: "Simulation", knobs: "Knobs") -> dict[str, Any]:
    """Everything that was found and everything that was assumed, units in the keys."""
    from bytelane.core import knobs_used

    link, used = found.cluster.link, knobs_used(found.policy)
    return {
        "job": found.job.name,
        "sync": "allreduce",
        "policy": found.policy,
        "workers": found.cluster.workers,
        "bandwidth_bit_per_s": link.rate * 8,
        "overhead_ms": link.overhead_s * 1000,
        "latency_ms": link.latency_s * 1000,
        "partition_bytes": knobs.partition_bytes if "partition_bytes" in used else None,
        "credit_bytes": knobs.credit_bytes if "credit_bytes" in used else None,
        "barrier": found.schedule.barrier,
        "layers": len(found.job.layers),
        "tensors": len(found.job.tensors),
        "total_bytes": found.job.total_bytes,
        "operations": found.operations,
        "iteration_ms": found.iteration_s * 1000,
        "compute_ms": found.compute_s * 1000,
        "communication_ms": found.communication_s * 1000,
        "bound_ms": found.bound_s * 1000,
    }


def _print_json(values: dict[str, Any]) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(values)).decode())


def _print_text(found: "Simulation") -> None:
    from bytelane.units import format_bytes, format_seconds

    job, window = found.job, found.schedule.window
    pieces = f"{_count(found.operations, 'piece')} an iteration"
    if window.credit_bytes is not None:
        pieces += f", a piece starts below {format_bytes(window.credit_bytes)} in flight"
    over = max(0.0, found.iteration_s / found.bound_s - 1) if found.bound_s else 0.0
    print(f"{job.name}: {format_bytes(job.total_bytes)} in {_count(len(job.tensors), 'tensor')}")
    print(f"on {_count(found.cluster.workers, 'worker')}, {found.cluster.link}")
    print(f"by {found.policy}: {pieces}\n")
    print(f"  iteration      {format_seconds(found.iteration_s):>10}")
    print(f"  compute        {format_seconds(found.compute_s):>10}")
    print(f"  communication  {format_seconds(found.communication_s):>10}")
    print(f"  bound          {format_seconds(found.bound_s):>10}   ({over:.1%} above it)")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
