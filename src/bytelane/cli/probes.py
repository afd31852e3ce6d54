"""Trials for ``bytelane doctor``: is a package, a compiler or ns-3 there, and does it work?

A probe tries the thing itself: being installed is not yet working. What could crash, hang or leave
something behind happens in a process of its own with a time limit, in a temporary folder. A probe
returns what it found, and raises :class:`Lacking` when that is not enough.
"""

import importlib.util
import platform
import re
import shutil
import sys
from functools import cache
from pathlib import Path

from bytelane.errors import LabError
from bytelane.lab.abilities import Lacking
from bytelane.lab.tools import run_tool
from bytelane.lifetime import scratch_folder

SIM = "pip install 'bytelane[sim]'"
PLOT = "pip install 'bytelane[plot]'"
TORCH = "pip install 'bytelane[torch]'"

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 6)
_NUMBA = "assert numba.njit(lambda x: x + 1)(1) == 2"
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
    return try_import("numba", SIM, _NUMBA)


def try_matplotlib() -> str:
    return try_import("matplotlib", PLOT)


@cache
def try_torch() -> str:
    version = try_import("torch", TORCH)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_TORCH:
        newer = TORCH.replace("install", "install --upgrade")
        raise Lacking(f"{version}, older than 2.6", newer, "limited")
    return version


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
    from importlib.metadata import version  # 20 ms that --help need not wait

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


def try_import(module: str, mend: str, code: str = "") -> str:
    """Import a package in a new process, run some code with it, and return its version."""
    if importlib.util.find_spec(module) is None:
        raise Lacking("not installed", mend)
    try:
        return run_python(f"import {module}\n{code}\nprint({module}.__version__)")
    except LabError as fault:
        # To pip an installed package is fine, so the extra alone would change nothing.
        again = f"pip install --force-reinstall {module}"
        raise Lacking(f"installed, but fails: {fault}", again) from None


def run_python(code: str) -> str:
    """Run code in a new process and a folder that ends with it."""
    with scratch_folder() as folder:
        return run_tool(
            [sys.executable, "-B", "-c", code],
            limit_s=60,
            folder=str(folder),
            environment={"MPLCONFIGDIR": str(folder)},
        )
