"""Options that several verbs share, so that they are spelled and documented alike.

A verb that asks for :class:`JobOptions`, :class:`ClusterOptions` or :class:`PolicyOptions` and is
decorated with :func:`flatten_options` gets all options of that group. The fields have the names of
the keywords in :mod:`bytelane.api`.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bytelane.errors import InputError
from bytelane.knob import CREDIT, FUSION, PARTITION, TAKEN, Knob
from bytelane.values import shown

if TYPE_CHECKING:
    from bytelane.cluster import Cluster
    from bytelane.job import Job

_job_option = functools.partial(typer.Option, rich_help_panel="Job")
_cluster_option = functools.partial(typer.Option, rich_help_panel="Cluster")
_policy_option = functools.partial(typer.Option, rich_help_panel="Policy")

JobFile = Annotated[
    str,  # Path("") would become "."
    typer.Argument(
        help="A job file (.toml or .json), or a model of the zoo.",
        metavar="JOB",
        show_default=False,
    ),
]
Accelerator = Annotated[
    str | None,
    _job_option(
        help="For a model of the zoo: the accelerator.", metavar="NAME", show_default="v100"
    ),
]
Batch = Annotated[
    int | None, _job_option(help="For a model of the zoo: samples per worker.", show_default="32")
]
Workers = Annotated[int, _cluster_option(help="Number of workers.")]
Bandwidth = Annotated[
    str, _cluster_option(help="Rate of each worker's link, e.g. 10Gbit or 500Mbit.", metavar="RATE")
]
Overhead = Annotated[
    str,
    _cluster_option(
        help="Link time per message, added to that of its bytes (theta).", metavar="TIME"
    ),
]
Latency = Annotated[
    str,
    _cluster_option(help="Time from the last byte until the end is known (lam).", metavar="TIME"),
]
Floor = Annotated[
    str,
    _cluster_option(help="Minimum handling time per message.", metavar="TIME"),
]
Sync = Annotated[
    str,
    _cluster_option(
        help="Synchronisation: allreduce, or ps for a parameter server.", metavar="WAY"
    ),
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
        "--shared-link", help="With ps: pushes and pulls share a link, as on real hosts."
    ),
]
Slow = Annotated[float, _cluster_option(help="Factor by which the last worker computes longer.")]
Policy = Annotated[
    str, _policy_option(help="Order of transfers; bytelane policies lists all.", metavar="NAME")
]


def _knob_option(knob: Knob) -> Any:
    return _policy_option(help=knob.help, metavar="SIZE", show_default="the policy's")


Partition = Annotated[str | None, _knob_option(PARTITION)]
Credit = Annotated[str | None, _knob_option(CREDIT)]
Fusion = Annotated[str | None, _knob_option(FUSION)]
OtherKnobs = Annotated[
    list[str] | None,
    _policy_option(
        "--knob",
        help="Set a knob of the policy by its name, e.g. first=256KiB; bytelane policies lists "
        "them. Repeat it for several.",
        metavar="NAME=VALUE",
        show_default=False,
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
    """The job that is trained."""

    job: JobFile
    accelerator: Accelerator = None
    batch: Batch = None

    def find(self) -> "Job":
        from bytelane.api import find_job

        return find_job(self.job, accelerator=self.accelerator, batch=self.batch)


class ClusterOptions(NamedTuple):
    """The cluster that trains it."""

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
    """The policy of a simulation, and its knobs."""

    policy: Policy = "bytescheduler"
    partition: Partition = None
    credit: Credit = None
    fusion: Fusion = None
    knob: OtherKnobs = None
    barrier: Barrier = None

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of :func:`bytelane.simulate`."""
        return {"policy": self.policy, "barrier": self.barrier, **self._given()}

    def _given(self) -> dict[str, str]:
        return given_knobs(
            self.knob, partition=self.partition, credit=self.credit, fusion=self.fusion
        )


def given_knobs(typed: Sequence[str] | None, **familiar: str | None) -> dict[str, str]:
    """Return the knobs that were given, by ``--knob NAME=VALUE`` or by options of their own."""
    given = {name: value for name, value in familiar.items() if value is not None}
    for item in typed or ():
        name, is_pair, value = (part.strip() for part in item.partition("="))
        if not (name and is_pair and value):
            raise InputError(f"knob {shown(item)} must be written like first=256KiB")
        if name in TAKEN:
            raise InputError(f"there is no knob {name}, but an argument or option of that name")
        if name in given:
            raise InputError(f"knob {shown(name)} is given twice; leave one out")
        given[name] = value
    return given


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
    # Typer reads it; mypy knows no signature that is set by hand.
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run
