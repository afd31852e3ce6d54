"""Join the source text of the simulator's loop, a network, the log and the core's kernel.

numba compiles that text (:mod:`bytelane.sim.compiled`), and Python can interpret it. The loop calls
every network by the same names.
"""

import inspect
from collections.abc import Callable
from functools import cache
from types import ModuleType

from bytelane.core import kernel as core_kernel
from bytelane.sim import kernel, log
from bytelane.sim.network import serial

Run = Callable[..., None]
"""The loop: state, work, now, network, flights, log."""

# What a network must define; see :mod:`bytelane.sim.network`.
NAMES = ("Network", "Flights", "advance", "arrived", "next_arrival", "transmit")


def joined_text(network: ModuleType = serial) -> str:
    """Return the text in which the loop runs on this network."""
    # Importing modules first: the text of the modules they import from follows and redefines the
    # imported names, so that compiled functions call compiled functions.
    modules = (kernel, network, log, core_kernel)
    _require_names(network, modules)
    return "\n\n".join(inspect.getsource(module) for module in modules)


def interpreted(network: ModuleType = serial) -> Run:
    """Return the loop on this network, as Python runs it."""
    return kernel.run if network is serial else _interpreted(network)


@cache
def _interpreted(network: ModuleType) -> Run:
    module = ModuleType(f"bytelane_loop_on_{network.__name__}")
    exec(joined_text(network), vars(module))  # our text
    run: Run = vars(module)["run"]
    return run


def _require_names(network: ModuleType, modules: tuple[ModuleType, ...]) -> None:
    missing = [name for name in NAMES if name not in _own_names(network)]
    if missing:
        raise TypeError(f"network {network.__name__} has no {' and no '.join(missing)}")
    for other in modules:
        clash = _own_names(network) & _own_names(other)
        if other is not network and clash:
            raise TypeError(
                f"network {network.__name__} and {other.__name__} both define "
                f"{' and '.join(sorted(clash))}; rename one"
            )


def _own_names(module: ModuleType) -> set[str]:
    """Return the functions and classes that a module defines itself."""
    own = vars(module).items()
    return {name for name, value in own if getattr(value, "__module__", None) == module.__name__}
