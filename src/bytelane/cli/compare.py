"""``bytelane compare``: every policy on the same job, side by side."""

from typing import Any

from bytelane.cli.options import (
    Accelerator,
    Bandwidth,
    Batch,
    JobFile,
    Json,
    Latency,
    Overhead,
    Separate,
    Servers,
    Slow,
    Sync,
    Workers,
)
from bytelane.cli.output import print_json, print_table


def compare(
    job: JobFile,
    workers: Workers = 2,
    bandwidth: Bandwidth = "10Gbit",
    overhead: Overhead = "0us",
    latency: Latency = "0us",
    sync: Sync = "allreduce",
    servers: Servers = None,
    separate: Separate = False,
    slow: Slow = 1.0,
    accelerator: Accelerator = None,
    batch: Batch = None,
    as_json: Json = False,
) -> None:
    """Show all policies side by side: the gain over fifo, and the distance from the optimum.

    Each policy has its own usual knobs. Example: bytelane compare vgg16 --bandwidth 25Gbit
    """
    from bytelane.api import find_job, make_cluster
    from bytelane.core import make_policy, policies_for
    from bytelane.sim import simulate

    what = find_job(job, accelerator=accelerator, batch=batch)
    where = make_cluster(
        workers=workers,
        bandwidth=bandwidth,
        overhead=overhead,
        latency=latency,
        sync=sync,
        servers=servers,
        separate=separate,
        slow=slow,
    )
    found = {
        name: simulate(what, where, make_policy(name, what, where)).iteration_s
        for name in policies_for(where.sync)
    }
    rows = [_row(name, seconds, found) for name, seconds in found.items()]
    if as_json:
        print_json({"job": what.name, "sync": where.sync, "workers": workers, "policies": rows})
        return
    print(f"{what.name} on {workers} workers, {where.link}\n")
    print_table(
        ("policy", "iteration", "over fifo", "above the optimum"),
        [
            (
                row["policy"],
                f"{row['iteration_ms']:.1f} ms",
                f"{row['gain_over_fifo_percent']:+.1f} %",
                f"{row['above_optimum_percent']:.1f} %",
            )
            for row in sorted(rows, key=lambda row: float(row["iteration_ms"]))
        ],
    )


def _row(name: str, seconds: float, found: dict[str, float]) -> dict[str, Any]:
    return {
        "policy": name,
        "iteration_ms": seconds * 1000,
        "gain_over_fifo_percent": 100 * (found["fifo"] / seconds - 1),
        "above_optimum_percent": max(0.0, 100 * (seconds / found["optimal"] - 1)),
    }
