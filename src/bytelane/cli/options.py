"""Options that several verbs share, so that they are spelled and documented alike.

A verb that asks for :class:`JobOptions`, :class:`ClusterOptions` or :class:`PolicyOptions` and is
decorated with :func:`flatten_options` gets all options of that group. The fields have the names of
the keywords in :mod:`bytelane.api`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from bytelane.cluster import Cluster
    from bytelane.core import Knobs
    from bytelane.job import Job

_job_option = functools.partial(typer.Option, rich_help_panel="Job")
_cluster_option = functools.partial(typer.Option, rich_help_panel="Cluster")
_policy_option = functools.partial(typer.Option, rich_help_panel="Policy")

JobFile = Annotated[
    str,  # a path would make a dot of nothing
    typer.Argument(
        help="A job file (.toml or .json), or a model of the zoo.",
        metavar="JOB",
        show_default=False,
    ),
]
Accelerator = Annotated[
    str | None,
    _job_option(help="For a model of the zoo: what computes.", metavar="NAME", show_default="v100"),
]
Batch = Annotated[
    int | None, _job_option(help="For a model of the zoo: samples a worker.", show_default="32")
]
Workers = Annotated[int, _cluster_option(help="Number of workers.")]
Bandwidth = Annotated[
    str, _cluster_option(help="Rate of each worker's link, e.g. 10Gbit or 500Mbit.", metavar="RATE")
]
Overhead = Annotated[
    str, _cluster_option(help="Link time per message beside its bytes (theta).", metavar="TIME")
]
Latency = Annotated[
    str, _cluster_option(help="From the last byte until the end is known (lam).", metavar="TIME")
]
Floor = Annotated[
    str,
    _cluster_option(help="To handle a message, however small; one by one.", metavar="TIME"),
]
Sync = Annotated[
    str, _cluster_option(help="allreduce, or ps for a parameter server.", metavar="WAY")
]
Servers = Annotated[
    int | None,
    _cluster_option(help="With ps: number of servers.", show_default="as many as workers"),
]
Separate = Annotated[
    bool, _cluster_option("--separate", help="With ps: servers on their own hosts.")
]
SharedLink = Annotated[
    bool,
    _cluster_option(
        "--shared-link", help="With ps: pushes and pulls take turns on one link, as they do."
    ),
]
Slow = Annotated[float, _cluster_option(help="The last worker computes longer by this factor.")]
Policy = Annotated[
    str, _policy_option(help="Who goes first; bytelane compare shows them all.", metavar="NAME")
]
Partition = Annotated[
    str | None,
    _policy_option(
        help="Largest piece sent in one go, e.g. 4MiB.", metavar="SIZE", show_default="the policy's"
    ),
]
Credit = Annotated[
    str | None,
    _policy_option(
        help="Start a piece while fewer bytes than this are in flight.",
        metavar="SIZE",
        show_default="two partitions; p3: one",
    ),
]
Fusion = Annotated[
    str | None,
    _policy_option(
        help="Send tensors together up to this.", metavar="SIZE", show_default="the policy's"
    ),
]
Barrier = Annotated[
    bool | None,
    _policy_option(
        "--barrier/--no-barrier",
        help="Forward waits for all tensors, or each layer for its own.",
        show_default="the policy's",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


class JobOptions(NamedTuple):
    """What is trained."""

    job: JobFile
    accelerator: Accelerator = None
    batch: Batch = None

    def find(self) -> "Job":
        from bytelane.api import find_job

        return find_job(self.job, accelerator=self.accelerator, batch=self.batch)


class ClusterOptions(NamedTuple):
    """On what."""

    workers: Workers = 2
    bandwidth: Bandwidth = "10Gbit"
    overhead: Overhead = "0us"
    latency: Latency = "0us"
    floor: Floor = "0us"
    sync: Sync = "allreduce"
    servers: Servers = None
    separate: Separate = False
    shared_link: SharedLink = False
    slow: Slow = 1.0

    def make(self) -> "Cluster":
        from bytelane.api import make_cluster

        return make_cluster(**self._asdict())


class PolicyOptions(NamedTuple):
    """Who goes first."""

    policy: Policy = "bytescheduler"
    partition: Partition = None
    credit: Credit = None
    fusion: Fusion = None
    barrier: Barrier = None

    def knobs(self) -> "Knobs":
        from bytelane.api import choose_knobs

        return choose_knobs(self.policy, self.partition, self.credit, self.fusion)


GROUPS = (JobOptions, ClusterOptions, PolicyOptions)


def flatten_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Show typer each option of the groups that a verb asks for; hand the groups to the verb."""
    wanted = inspect.signature(verb).parameters
    groups = {name: p.annotation for name, p in wanted.items() if p.annotation in GROUPS}
    flat = [
        option
        for name, p in wanted.items()
        for option in (
            inspect.signature(groups[name]).parameters.values() if name in groups else (p,)
        )
    ]

    @functools.wraps(verb)
    def run(**values: Any) -> None:
        filled = {
            name: group(**{field: values.pop(field) for field in group._fields})
            for name, group in groups.items()
        }
        verb(**filled, **values)

    run.__annotations__ = {option.name: option.annotation for option in flat}
    # What typer reads; mypy knows no signature that is set by hand.
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run
