"""``bytelane simulate``: what would an iteration take?"""

from pathlib import Path
from typing import Annotated, Any

import typer

from bytelane.cli.options import Bandwidth, Credit, JobFile, Json, Partition, Policy, Workers


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
        _print_json(summary(found))
    else:
        _print_text(found)


def summary(found: Any) -> dict[str, Any]:
    """Everything that was found and everything that was assumed, units in the keys."""
    policy, link = found.schedule, found.cluster.link
    parts = [part for part in policy.part_bytes if part is not None]
    return {
        "job": found.job.name,
        "sync": "allreduce",
        "policy": policy.name,
        "workers": found.cluster.workers,
        "bandwidth_bit_per_s": link.rate * 8,
        "overhead_ms": link.overhead_s * 1000,
        "latency_ms": link.latency_s * 1000,
        "partition_bytes": max(parts) if parts else None,
        "credit_bytes": policy.window.credit_bytes,
        "barrier": policy.barrier,
        "layers": len(found.job.layers),
        "tensors": len(found.job.tensors),
        "total_bytes": found.job.total_bytes,
        "operations": found.pieces.operation_count,
        "iteration_ms": found.iteration_s * 1000,
        "compute_ms": found.compute_s * 1000,
        "communication_ms": found.communication_s * 1000,
        "bound_ms": found.bound_s * 1000,
    }


def _print_json(values: dict[str, Any]) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(values)).decode())


def _print_text(found: Any) -> None:
    from bytelane.units import format_bytes, format_seconds

    policy, job = found.schedule, found.job
    pieces = f"{found.pieces.operation_count} pieces an iteration"
    if policy.window.credit_bytes is not None:
        pieces += f", a piece starts below {format_bytes(policy.window.credit_bytes)} in flight"
    over = found.iteration_s / found.bound_s - 1 if found.bound_s else 0.0
    print(f"{job.name}: {format_bytes(job.total_bytes)} in {len(job.tensors)} tensors")
    print(f"on {found.cluster.workers} workers, {found.cluster.link}")
    print(f"by {policy.name}: {pieces}\n")
    print(f"  iteration      {format_seconds(found.iteration_s):>10}")
    print(f"  compute        {format_seconds(found.compute_s):>10}")
    print(f"  communication  {format_seconds(found.communication_s):>10}")
    print(f"  bound          {format_seconds(found.bound_s):>10}   ({over:.1%} above it)")
