"""The kernels as machine code, compiled once per version of their text.

numba's own cache does not notice that a function called from another file has changed. So the text
of both kernels goes into one file, in a folder named by a hash of that text; numba keeps its cache
beside it, and a change of either kernel is another folder. See decision 1 of the design. Where no
folder is this user's alone, nothing is kept: every process compiles for itself.
"""

import hashlib
import inspect
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from bytelane.core import kernel as core_kernel
from bytelane.errors import MissingExtra
from bytelane.interrupts import uninterrupted
from bytelane.sim import kernel as sim_kernel
from bytelane.sim.cache import NotPrivate, cache_folder, require_private
from bytelane.terminal import show

# The kernels allocate nothing. With its run-time system (nrt) numba counts references to dozens of
# arrays at every turn, which is 95 % of the running time; handing those arrays from function to
# function, instead of inlining the functions, is two thirds of the rest (measured on numba 0.68).
_OPTIONS: dict[str, Any] = {"_nrt": False}
_INLINE: dict[str, Any] = _OPTIONS | {"inline": "always"}


@cache
def load_compiled() -> ModuleType:
    """Import both kernels as one module in which every function is compiled on first use."""
    with uninterrupted():
        return _compile()


def _compile() -> ModuleType:
    try:
        from numba import njit
    except ImportError:
        raise MissingExtra(
            "the compiled simulator needs numba; install it with: pip install 'bytelane[sim]'"
        ) from None
    module, is_kept = _import_kernels()
    with _numba_keeps_it_beside_the_source():
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                options = _OPTIONS if name == "run" else _INLINE
                setattr(module, name, njit(cache=is_kept, **options)(value))
    return module


def run_compiled(*arguments: Any) -> Any:
    """Run the compiled loop, also where what was compiled cannot be kept, as on a full disk."""
    run = load_compiled().run
    if run.signatures:
        return run(*arguments)
    with uninterrupted():  # compiles, or loads what was compiled
        try:
            return run(*arguments)
        except OSError:  # numba's, which has compiled it by then, and not run it
            return run(*arguments)


def _import_kernels() -> tuple[ModuleType, bool]:
    """Return both kernels as one module, and whether what is compiled of it is kept."""
    text, digest = _source()
    # The module is registered: numba looks globals up by module name when it loads its cache.
    module = ModuleType(f"bytelane_kernels_{digest}")
    sys.modules[module.__name__] = module
    try:
        file = str(_source_file(text, digest))
    except NotPrivate as reason:
        file = f"<{module.__name__}>"
        said = f"(about 10 s) for this process alone: {reason}; set BYTELANE_CACHE to a folder "
        said += "that only you can write"
        is_kept = False
    else:
        is_kept = True
        said = "" if list(Path(file).parent.glob("__pycache__/*.nbi")) else "(once, about 10 s)"
    if said:
        show(f"bytelane: compiling the simulator {said}", file=sys.stderr, flush=True)
    exec(compile(text, file, "exec"), vars(module))  # our text: numba alone reads the file
    return module, is_kept


def _source() -> tuple[str, str]:
    """Return the text of both kernels, and a short name for it."""
    # The dependent kernel first: the names it imports from the core are then defined over by the
    # core's own text, so that compiled functions call compiled functions.
    text = "\n\n".join(inspect.getsource(module) for module in (sim_kernel, core_kernel))
    # Nor does numba notice other options. "0700": folders of earlier versions could be read by all.
    return text, hashlib.sha256(f"{text}{_INLINE}0700".encode()).hexdigest()[:16]


def _source_file(text: str, digest: str) -> Path:
    """Return the file that holds this text, in a folder that is this user's alone."""
    folder = cache_folder() / digest
    require_private(folder)
    path = folder / "bytelane_kernels.py"
    try:
        if not path.exists():
            _write_once(path, text)
    except OSError as error:
        raise NotPrivate(f"{folder} cannot be written: {error.strerror}") from None
    return path


def _write_once(path: Path, text: str) -> None:
    """Write whole or not at all: another process may be doing the same."""
    file = tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False)  # noqa: SIM115
    try:
        with file:
            file.write(text)
        os.link(file.name, path)  # unlike a rename, never replaces what another one wrote
    except FileExistsError:
        pass
    finally:
        os.unlink(file.name)


@contextmanager
def _numba_keeps_it_beside_the_source() -> Iterator[None]:
    """Keep numba from a cache folder of its own settings, which may be anybody's."""
    from numba import config

    names = [name for name in ("CACHE_DIR", "CACHE_LOCATOR_CLASSES") if hasattr(config, name)]
    before = {name: getattr(config, name) for name in names}
    for name in names:
        setattr(config, name, "")
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
