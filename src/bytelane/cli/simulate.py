"""``bytelane simulate``: predict the iteration time of a training job."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.accounts import (
    accounts_as_json,
    idle_in_words,
    layer_table,
    print_accounts,
    print_layers,
    slack_as_json,
    tensor_table,
)
from bytelane.cli.options import ClusterOptions, JobOptions, Json, PolicyOptions, flatten_options
from bytelane.cli.output import count, print_json
from bytelane.terminal import one_line, show

if TYPE_CHECKING:
    from bytelane.sim import Simulation


@flatten_options
def simulate(
    job: JobOptions,
    cluster: ClusterOptions,
    policy: PolicyOptions,
    jitter: Annotated[
        float, typer.Option(help="Noise: each step's time is multiplied by exp(JITTER x normal).")
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the jitter, and of the order under policy random.", show_default="0"
        ),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Show times and slack of every layer.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace of the last iterations to write, for Perfetto.", metavar="FILE"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the iteration time of a training job.

    Example: bytelane simulate resnet50 --workers 4 --bandwidth 10Gbit
    """
    from bytelane import api
    from bytelane.sim.slack import layer_slack
    from bytelane.trace import save_chrome

    found = api.simulate(
        job.find(), **policy.keywords(), **cluster._asdict(), jitter=jitter, seed=seed
    )
    # The optimum is no schedule and has no slack; with --layers, layer_slack() refuses it.
    slack = layer_slack(found) if found.log or layers else None
    if trace:
        save_chrome([found.trace], trace)
    if as_json:
        values = summary(found) | {"jitter": jitter, "seed": seed or 0}
        values |= accounts_as_json(found) | slack_as_json(found, slack)
        if layers:
            values |= {"layer_table": layer_table(found), "tensor_table": tensor_table(found)}
        print_json(values)
    else:
        _print_text(found)
        print_accounts(found, slack)
        if layers:
            print_layers(layer_table(found))


def summary(found: "Simulation") -> dict[str, Any]:
    """Return all results and all assumptions, units in the keys."""
    cluster, values = found.cluster, found.knobs.values
    return {
        "job": found.job.name,
        "sync": cluster.sync,
        "policy": found.policy,
        "workers": cluster.workers,
        "servers": cluster.servers,
        "colocated": cluster.colocated if cluster.servers else None,
        "shared_link": cluster.shared_link if cluster.servers else None,
        "compute_factors": cluster.compute_factors or (1.0,) * cluster.workers,
        "bandwidth_bit_per_s": cluster.link.rate * 8,
        "overhead_ms": cluster.link.overhead_s * 1000,
        "latency_ms": cluster.link.latency_s * 1000,
        "floor_ms": cluster.link.floor_s * 1000,
        **{key: values.get(key) for key in _knob_keys(found.policy)},
        "barrier": found.schedule.barrier,
        "layers": len(found.job.layers),
        "tensors": len(found.job.tensors),
        "total_bytes": found.job.total_bytes,
        "operations": found.operations,
        "iteration_ms": found.iteration_s * 1000,
        "iteration_spread_ms": found.spread_s * 1000,
        "compute_ms": found.compute_s * 1000,
        "communication_ms": found.communication_s * 1000,
        "bound_ms": found.bound_s * 1000,
        "optimal_ms": found.optimal_s * 1000,
    }


def _knob_keys(policy: str) -> list[str]:
    """Return the keys of the familiar knobs, and of this policy's other knobs."""
    from bytelane.core import policy_entry
    from bytelane.knob import CREDIT, FUSION, PARTITION

    declared = (PARTITION, CREDIT, FUSION, *policy_entry(policy).knobs)
    return list(dict.fromkeys(knob.key for knob in declared))


def _print_text(found: "Simulation") -> None:
    from bytelane.units import NOISE, format_bytes, format_seconds, is_below

    job, window = found.job, found.schedule.window
    pieces = f"{count(found.operations, 'operation')} per iteration"
    if window.credit_bytes is not None:
        pieces += f", credit {format_bytes(window.credit_bytes)}"
    over = max(0.0, found.iteration_s / found.bound_s - 1) if found.bound_s else 0.0
    above = f"{over:.1%} above it"
    if is_below(found.iteration_s, found.bound_s):
        above = f"an iteration takes less: {NOISE}"
    size, tensors = format_bytes(job.total_bytes), count(len(job.tensors), "tensor")
    show(f"{one_line(job.name)}: {size} in {tensors}")
    show(f"on {count(found.cluster.workers, 'worker')}, {found.cluster.link}")
    show(f"by {found.policy}: {pieces}\n")
    spread = f"   (+- {format_seconds(found.spread_s)})" if found.spread_s else ""
    show(f"  iteration      {format_seconds(found.iteration_s):>10}{spread}")
    computing, link = idle_in_words(found)
    show(f"  compute        {format_seconds(found.compute_s):>10}   ({computing})")
    show(f"  communication  {format_seconds(found.communication_s):>10}   (the link is {link})")
    show(f"  bound          {format_seconds(found.bound_s):>10}   ({above})")
    show(f"  optimum        {format_seconds(found.optimal_s):>10}")
