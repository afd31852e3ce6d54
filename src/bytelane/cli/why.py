"""``bytelane why``: explain an iteration by its critical path."""

from typing import TYPE_CHECKING

from bytelane.cli.options import (
    ClusterOptions,
    JobOptions,
    Json,
    PolicyOptions,
    flatten_options,
)
from bytelane.cli.output import print_json, print_table
from bytelane.terminal import one_line, show

if TYPE_CHECKING:
    from bytelane.sim import Simulation
    from bytelane.sim.critical_path import Cause


@flatten_options
def why(
    job: JobOptions, cluster: ClusterOptions, policy: PolicyOptions, as_json: Json = False
) -> None:
    """Explain an iteration by its critical path: what each moment had to wait for.

    Example: bytelane why vgg16 --workers 4 --bandwidth 25Gbit --policy fifo
    """
    from bytelane import api
    from bytelane.sim.critical_path import critical_path, explain

    found = api.simulate(job.find(), **policy.keywords(), **cluster._asdict())
    path = critical_path(found)
    if as_json:
        _print_json(found, path)
    else:
        _print_text(found, explain(path))


def _busy_percent(found: "Simulation") -> tuple[float, float]:
    from bytelane.sim.accounts import accounts

    used = accounts(found)
    return 100 * used.compute.busy_share, 100 * used.up.busy_share


def _print_json(found: "Simulation", path: "list[Cause]") -> None:
    computing, link = _busy_percent(found)
    print_json(
        {
            "policy": found.policy,
            "iteration_ms": found.iteration_s * 1000,
            "compute_busy_percent": computing,
            "link_busy_percent": link,
            "path": [
                {
                    "what": cause.what,
                    "name": cause.name,
                    "start_ms": cause.start_s * 1000,
                    "duration_ms": cause.seconds * 1000,
                }
                for cause in path
            ],
        }
    )


def _print_text(found: "Simulation", causes: "list[Cause]") -> None:
    computing, link = _busy_percent(found)
    name = one_line(found.job.name)
    show(
        f"{name} by {found.policy}: {found.iteration_s * 1e3:.1f} ms per iteration, "
        f"in which computing is busy {computing:.0f} % of the time and the link {link:.0f} %\n"
    )
    print_table(
        ("waits for", "from", "takes", "share"),
        [
            (
                f"{cause.what} {cause.name}",
                f"{cause.start_s * 1e3:.1f} ms",
                f"{cause.seconds * 1e3:.1f} ms",
                f"{cause.seconds / found.iteration_s:.0%}",
            )
            for cause in causes
        ],
    )
