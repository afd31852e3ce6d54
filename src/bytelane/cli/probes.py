"""Probes of ``bytelane doctor``: is a package, a compiler or ns-3 installed, and does it work?

A probe uses the package: being installed is not yet working. Code that could crash, hang or leave
files runs in a process of its own with a time limit, in a temporary folder. A probe returns what it
found, e.g. a version, and raises :class:`Lacking` when that is not enough.
"""

import importlib.util
import platform
import shutil
import sys
from functools import cache
from pathlib import Path

from bytelane.errors import LabError
from bytelane.foreign.names import OLDEST_TORCH, TESTED_TORCH, is_too_old
from bytelane.lab.abilities import Lacking
from bytelane.lab.tools import run_tool
from bytelane.lifetime import scratch_folder

SIM = "pip install 'bytelane[sim]'"
PLOT = "pip install 'bytelane[plot]'"
TORCH = "pip install 'bytelane[torch]'"
SERVERS = "pip install 'bytelane[ps]'"

OLDEST_PYTHON = (3, 11)
_NUMBA = "assert numba.njit(lambda x: x + 1)(1) == 2"
_NUMBA_NAMES = "from bytelane.foreign.numba import replaced\nprint(*replaced(), sep='\\n')"
_TORCH_NAMES = """
from bytelane.foreign.torch import missing, replaced
print(*missing(), "--", *replaced(), sep="\\n")
"""
_CURVE = "assert zmq.has('curve'), 'this pyzmq cannot encrypt'"
_GLOO = """
import sys, torch, torch.distributed as dist
if not (dist.is_available() and dist.is_gloo_available()):
    print("absent")
    sys.exit()
dist.init_process_group("gloo", store=dist.FileStore("store", 1), rank=0, world_size=1)
ones = torch.ones(4)
dist.all_reduce(ones)
dist.destroy_process_group()
if ones.tolist() != [1.0] * 4:
    sys.exit(f"all-reduce of ones gave {ones.tolist()}")
print("works")
"""


def try_python() -> str:
    if sys.version_info < OLDEST_PYTHON:
        raise Lacking(f"{platform.python_version()}, older than 3.11")
    return platform.python_version()


def try_numba() -> str:
    version = try_import("numba", SIM, _NUMBA)
    return "; ".join([version, *run_python(_NUMBA_NAMES).splitlines()])


def try_matplotlib() -> str:
    return try_import("matplotlib", PLOT)


def try_pyzmq() -> str:
    return try_import("zmq", SERVERS, _CURVE, "pyzmq")


@cache
def try_torch() -> str:
    version = try_import("torch", TORCH)
    if is_too_old(version):
        newer = TORCH.replace("install", "install --upgrade")
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise Lacking(f"{version}, older than {oldest}", newer, "limited")
    missing, _, replaced = run_python(_TORCH_NAMES).partition("--")
    if missing:
        tested = ".".join(map(str, TESTED_TORCH))
        reasons = "; ".join(missing.splitlines())
        raise Lacking(reasons, f"pip install 'torch=={tested}.*'", "limited")
    return "; ".join([version, *replaced.split("\n")[1:]])


def try_gloo() -> str:
    try_torch()  # without it there is nothing to try, and its mend is the right one
    if run_python(_GLOO) != "works":
        raise Lacking("this torch was built without it", "pip install --force-reinstall torch")
    return "an all-reduce works"


def try_compiler() -> str:
    for name in ("g++", "c++"):
        if shutil.which(name):
            return run_tool([name, "--version"]).partition("\n")[0]
    raise Lacking("no g++ or c++")


def try_ns3() -> str:
    from importlib.metadata import version  # takes 20 ms, which --help does not need

    # Importing the bindings costs 18 CPU seconds; only headers and libraries are needed.
    spec = importlib.util.find_spec("ns3")
    for folder in (spec and spec.submodule_search_locations) or []:
        if Path(folder, "include/ns3/core-module.h").exists():
            return f"{version('ns3')}, the pip package"
    if shutil.which("pkg-config"):
        try:
            return f"{run_tool(['pkg-config', '--modversion', 'ns3-core'])}, the system's package"
        except LabError:
            pass  # pkg-config does not know it; the headers may still be there
    for folder in ("/usr/include", "/usr/local/include"):
        if Path(folder, "ns3/core-module.h").exists():
            return f"headers in {folder}"
    raise Lacking("not installed")


def try_import(module: str, mend: str, code: str = "", package: str = "") -> str:
    """Import a module in a new process, run some code with it, and return its version."""
    if importlib.util.find_spec(module) is None:
        raise Lacking("not installed", mend)
    try:
        return run_python(f"import {module}\n{code}\nprint({module}.__version__)")
    except LabError as fault:
        # pip keeps an installed package, so installing the extra would change nothing.
        again = f"pip install --force-reinstall {package or module}"
        raise Lacking(f"installed, but fails: {fault}", again) from None


def run_python(code: str) -> str:
    """Run code in a new process, in a temporary folder."""
    with scratch_folder() as folder:
        return run_tool(
            [sys.executable, "-B", "-c", code],
            limit_s=60,
            folder=str(folder),
            environment={"MPLCONFIGDIR": str(folder)},
        )
