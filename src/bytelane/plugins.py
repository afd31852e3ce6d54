"""Load plug-ins: policies of other packages, by the entry point group ``bytelane.policies``.

A package names in its ``pyproject.toml`` the module that registers them::

    [project.entry-points."bytelane.policies"]
    mine = "my_package.policies"

These modules are imported only when a policy is asked for that is not registered, or when all are
listed.
"""

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from bytelane.core import policy_names
from bytelane.terminal import show

GROUP = "bytelane.policies"


def look_for(policy: str) -> None:
    """Load the policies of other packages if ``policy`` is not registered yet."""
    if policy not in policy_names():
        load_policies()


@cache
def load_policies() -> None:
    """Import every module that registers policies, once; print which imports fail."""
    for point in entry_points(group=GROUP):
        _load(point)


def _load(point: EntryPoint) -> None:
    try:
        point.load()
    except Exception as error:  # a plug-in may raise anything; the other policies still work
        package = point.dist.name if point.dist else "a package"
        show(
            f"bytelane: the policies of {package} ({point.value}) cannot be used: "
            f"{type(error).__name__}: {error}",
            file=sys.stderr,
        )
