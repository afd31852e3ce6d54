"""The kernels as machine code, compiled once per version of their text.

numba's own cache does not notice that a function called from another file has changed. So the text
of both kernels goes into one file, in a folder named by a hash of that text; numba keeps its cache
beside it, and a change of either kernel is another folder. See decision 1 of the design.
"""

import hashlib
import importlib.util
import inspect
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from bytelane.core import kernel as core_kernel
from bytelane.errors import MissingExtra
from bytelane.sim import kernel as sim_kernel
from bytelane.terminal import show

# The kernels allocate nothing. With its run-time system (nrt) numba counts references to dozens of
# arrays at every turn, which is 95 % of the running time; handing those arrays from function to
# function, instead of inlining the functions, is two thirds of the rest (measured on numba 0.68).
_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False}
_INLINE: dict[str, Any] = _OPTIONS | {"inline": "always"}


@cache
def load_compiled() -> ModuleType:
    """Import both kernels as one module in which every function is compiled on first use."""
    try:
        from numba import njit
    except ImportError:
        raise MissingExtra(
            "the compiled simulator needs numba; install it with: pip install 'bytelane[sim]'"
        ) from None
    path = _source_file()
    if not list(path.parent.glob("__pycache__/*.nbi")):
        show("bytelane: compiling the simulator (once, about 10 s)", file=sys.stderr, flush=True)
    module = _import_file(path)
    for name, value in list(vars(module).items()):
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            options = _OPTIONS if name == "run" else _INLINE
            setattr(module, name, njit(**options)(value))
    return module


def _source_file() -> Path:
    # The dependent kernel first: the names it imports from the core are then defined over by the
    # core's own text, so that compiled functions call compiled functions.
    text = "\n\n".join(inspect.getsource(module) for module in (sim_kernel, core_kernel))
    # Nor does numba notice other options.
    digest = hashlib.sha256(f"{text}{_INLINE}".encode()).hexdigest()[:16]
    for folder in _cache_folders():
        path = folder / digest / "bytelane_kernels.py"
        try:
            if not path.exists():
                _write_once(path, text)
        except OSError:
            continue  # not writable: a temporary folder costs a compile, not the answer
        return path
    raise OSError("found no folder to keep compiled code in; set BYTELANE_CACHE to one")


def _cache_folders() -> list[Path]:
    wanted = os.environ.get("BYTELANE_CACHE")
    if wanted:
        return [Path(wanted)]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Path(base) / "bytelane", Path(tempfile.gettempdir()) / f"bytelane-{os.getuid()}"]


def _write_once(path: Path, text: str) -> None:
    """Write whole or not at all: another process may be doing the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    try:
        os.link(file.name, path)  # unlike a rename, never replaces what another one wrote
    except FileExistsError:
        pass
    finally:
        os.unlink(file.name)


def _import_file(path: Path) -> ModuleType:
    # The module is registered: numba looks globals up by module name when it loads its cache.
    name = f"bytelane_kernels_{path.parent.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
