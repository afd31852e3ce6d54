"""How the accounts and the slack of an iteration are shown, to programs and to people."""

from typing import TYPE_CHECKING, Any

from bytelane.cli.output import print_table

if TYPE_CHECKING:
    from bytelane.sim import Simulation
    from bytelane.sim.slack import Slack


def accounts_as_json(found: "Simulation") -> dict[str, Any]:
    """Idle times worker by worker, and bytes for each kind of host."""
    from bytelane.sim.accounts import link_traffic, workers_accounts

    workers = workers_accounts(found)
    return {
        "compute_idle_ms": [worker.compute.idle_s * 1000 for worker in workers],
        "link_up_idle_ms": [worker.up.idle_s * 1000 for worker in workers],
        "link_down_idle_ms": [worker.down.idle_s * 1000 for worker in workers],
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
    """Lists with an entry a layer; null for a layer that uses no tensor first."""
    if slack is None:
        return {"layer_budget_ms": None, "layer_slack_ms": None}
    by_layer = {"layer_budget_ms": slack.budget_s, "layer_slack_ms": slack.slack_s}
    return {
        key: _spread_out(slack.layer.tolist(), (1000 * column).tolist(), len(found.job.layers))
        for key, column in by_layer.items()
    }


def layer_table(found: "Simulation") -> list[dict[str, Any]]:
    """One row a layer; moments are counted from the start of the forward pass."""
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
    """The same, one row a tensor."""
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
    """Print in a few lines what each link carries, and what computing waits for."""
    from bytelane.sim.accounts import link_traffic
    from bytelane.units import format_bytes

    print()
    for link in link_traffic(found.job, found.cluster):
        # As much comes down as goes up, in every arrangement.
        size, share = format_bytes(round(link.up_bytes)), _used(found, link.up_bytes)
        print(f"  the link of a {link.host} carries {size} each way, {share:.0%} of what it could")
    if slack is not None and slack.layer.size:
        assert found.log is not None
        whose = "the first worker's " if found.log.iteration_start.shape[0] > 1 else ""
        print(f"  {whose}{_waits_in_words(found, slack)}")


def print_layers(rows: list[dict[str, Any]]) -> None:
    """Print the table of the layers, all times in milliseconds."""
    titles = [key.removesuffix("_ms") for key in rows[0]]
    print("\nTimes in ms; moments since the forward pass began whose gradients they are.\n")
    print_table(titles, [[_cell(value) for value in row.values()] for row in rows])


def _spread_out(places: list[int], values: list[float], count: int) -> list[float | None]:
    spread: list[float | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        spread[place] = value
    return spread


def _moments(slack: "Slack") -> dict[str, list[Any]]:
    names = ("ready", "arrived", "needed", "used", "budget", "slack")
    return {f"{name}_ms": (1000 * getattr(slack, f"{name}_s")).tolist() for name in names}


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _used(found: "Simulation", size: float) -> float:
    """Return how much of what a link could carry in an iteration that is."""
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
