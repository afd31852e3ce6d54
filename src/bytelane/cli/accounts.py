"""Print idle times, link traffic and slack of a simulated iteration, as text or JSON."""

from typing import TYPE_CHECKING, Any

from bytelane.cli.output import print_table
from bytelane.terminal import show

if TYPE_CHECKING:
    from bytelane.sim import Simulation
    from bytelane.sim.slack import Slack


def accounts_as_json(found: "Simulation") -> dict[str, Any]:
    """Return idle times per worker, and bytes per kind of host."""
    from bytelane.sim.accounts import link_traffic, workers_accounts
    from bytelane.sim.steady import whole_iterations

    idle: dict[str, list[float]] = {}
    for resource, uses in zip(
        ("compute", "link_up", "link_down"), zip(*workers_accounts(found), strict=True), strict=True
    ):
        idle[f"{resource}_idle_ms"] = [use.idle_s * 1000 for use in uses]
        idle[f"{resource}_idle_spread_ms"] = [use.spread_s * 1000 for use in uses]
    return idle | {
        "means_over_iterations": whole_iterations(found),
        "links": [
            {
                "host": link.host,
                "hosts": link.hosts,
                "up_bytes": link.up_bytes,
                "down_bytes": link.down_bytes,
                "up_used_percent": 100 * _used(found, link.up_bytes),
                "down_used_percent": 100 * _used(found, link.down_bytes),
            }
            for link in link_traffic(found.job, found.cluster)
        ],
    }


def slack_as_json(found: "Simulation", slack: "Slack | None") -> dict[str, Any]:
    """Return lists with one entry per layer; null for a layer that uses no tensor first."""
    shown = ("budget_ms", "slack_ms", "slack_spread_ms")
    if slack is None:
        return {f"layer_{key}": None for key in shown}
    moments, layers, count = _moments(slack), slack.layer.tolist(), len(found.job.layers)
    return {f"layer_{key}": _spread_out(layers, moments[key], count) for key in shown}


def layer_table(found: "Simulation") -> list[dict[str, Any]]:
    """Return one row per layer; moments are counted from the start of the forward pass."""
    from bytelane.sim.slack import layer_slack

    slack, layers = layer_slack(found), found.job.layers
    sizes = [0] * len(layers)
    for tensor in found.job.tensors:
        sizes[tensor.needed_by] += tensor.bytes
    moments = {
        key: _spread_out(slack.layer.tolist(), column, len(layers))
        for key, column in _moments(slack).items()
    }
    columns: dict[str, list[Any]] = {
        "layer": [layer.name for layer in layers],
        "forward_ms": [layer.forward_s * 1000 for layer in layers],
        "backward_ms": [layer.backward_s * 1000 for layer in layers],
        "bytes": sizes,
    }
    return _rows(columns | moments)


def tensor_table(found: "Simulation") -> list[dict[str, Any]]:
    """Return one row per tensor, with the same moments."""
    from bytelane.sim.slack import tensor_slack

    columns: dict[str, list[Any]] = {
        "tensor": [tensor.name for tensor in found.job.tensors],
        "bytes": [tensor.bytes for tensor in found.job.tensors],
    }
    return _rows(columns | _moments(tensor_slack(found)))


def idle_in_words(found: "Simulation") -> tuple[str, str]:
    """Say how long computing is idle in an iteration, and how long the link is."""
    from bytelane.sim.accounts import workers_accounts

    workers = workers_accounts(found)
    compute, up, down = (
        _range([use.idle_s for use in uses]) for uses in zip(*workers, strict=True)
    )
    return f"idle {compute}", f"idle {up}" if up == down else f"idle {up} up, {down} down"


def print_accounts(found: "Simulation", slack: "Slack | None") -> None:
    """Print in a few lines the traffic of each link, and before which layers computing waits."""
    from bytelane.sim.accounts import link_traffic
    from bytelane.sim.steady import whole_iterations
    from bytelane.units import format_bytes

    show()
    for link in link_traffic(found.job, found.cluster):
        # As much comes down as goes up, in every arrangement.
        size, share = format_bytes(round(link.up_bytes)), _used(found, link.up_bytes)
        show(f"  the link of a {link.host} carries {size} each way, {share:.0%} of its capacity")
    if whole_iterations(found) > 1:
        show(f"  idle times and waits are means over {whole_iterations(found)} iterations")
    if slack is not None and slack.layer.size:
        assert found.log is not None
        whose = "the first worker's " if found.log.iteration_start.shape[0] > 1 else ""
        show(f"  {whose}{_waits_in_words(found, slack)}")


def print_layers(rows: list[dict[str, Any]]) -> None:
    """Print the table of the layers, all times in milliseconds."""
    spread = any(row["slack_spread_ms"] for row in rows)
    keys = [key for key in rows[0] if spread or key != "slack_spread_ms"]
    times = "Times in ms, mean and spread over iterations" if spread else "Times in ms"
    show(f"\n{times}; moments since the start of the iteration that computes the gradients.\n")
    titles = [key.removesuffix("_ms").removeprefix("slack_") for key in keys]
    print_table(titles, [[_cell(row[key]) for key in keys] for row in rows])


def _spread_out(places: list[int], values: list[float], count: int) -> list[float | None]:
    spread: list[float | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        spread[place] = value
    return spread


def _moments(slack: "Slack") -> dict[str, list[Any]]:
    names = ("ready", "arrived", "needed", "used", "budget", "slack")
    columns = {f"{name}_ms": getattr(slack, f"{name}_s") for name in names}
    columns["slack_spread_ms"] = slack.spread_s
    return {key: (1000 * column).tolist() for key, column in columns.items()}


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _used(found: "Simulation", size: float) -> float:
    """Return the share of a link's capacity per iteration that ``size`` bytes take."""
    could = found.cluster.link.rate * found.iteration_s
    return size / could if could else 0.0


def _range(times_s: list[float]) -> str:
    from bytelane.units import format_seconds

    least, most = format_seconds(min(times_s)), format_seconds(max(times_s))
    return least if least == most else f"{least} to {most}"


def _waits_in_words(found: "Simulation", slack: "Slack") -> str:
    from bytelane.units import format_seconds

    waiting_s, late = slack.waiting_s, slack.waiting_s > 0
    if not late.any():
        return f"computing never waits; the least slack is {format_seconds(slack.slack_s.min())}"
    longest = int(waiting_s.argmax())
    seconds = format_seconds(waiting_s[longest])
    if found.schedule.barrier:
        return f"computing waits {seconds} at the barrier, until all tensors are there"
    name = found.job.layers[slack.layer[longest]].name
    if late.sum() == 1:
        return f"computing waits {seconds} before {name}, and before no other layer"
    return (
        f"computing waits before {late.sum()} of {late.size} layers with tensors, "
        f"longest before {name} ({seconds})"
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)
