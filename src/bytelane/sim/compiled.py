"""Compile the kernels with numba, once per version of their text, and cache the machine code.

numba's own cache does not notice that a function called from another file has changed. So the text
of all kernels goes into one file, in a folder named by a hash of that text; numba keeps its cache
beside it, and a change of any kernel is another folder. Without a folder that is private to this
user nothing is kept: every process compiles for itself.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from bytelane.errors import MissingExtra
from bytelane.foreign.numba import without_reference_counting
from bytelane.interrupts import uninterrupted
from bytelane.sim.assembly import joined_text
from bytelane.sim.cache import NotPrivate, cache_folder, require_private
from bytelane.sim.network import serial
from bytelane.terminal import show


def load_compiled(network: ModuleType = serial) -> ModuleType:
    """Import all kernels as one module in which every function is compiled on first use."""
    return _load_compiled(network)


@cache
def _load_compiled(network: ModuleType) -> ModuleType:
    with uninterrupted():
        return _compile(network)


def _compile(network: ModuleType) -> ModuleType:
    try:
        from numba import njit
    except ImportError:
        raise MissingExtra(
            "the compiled simulator needs numba; install it with: pip install 'bytelane[sim]'"
        ) from None
    module, is_kept = _import_kernels(network)
    with _numba_keeps_it_beside_the_source():
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                options = _options(inline=name != "run")
                setattr(module, name, njit(cache=is_kept, **options)(value))
    return module


def _options(*, inline: bool) -> dict[str, Any]:
    """Return numba's options for a function of the kernels.

    The kernels allocate nothing, but numba counts references to dozens of arrays at every turn,
    which is 95 % of the running time. Handing those arrays from function to function, instead of
    inlining the functions, is 2/3 of the rest (measured on numba 0.68).
    """
    options = without_reference_counting()
    return options | {"inline": "always"} if inline else options


_warm: set[Any] = set()
"""Loops that are compiled."""


def run_compiled(*arguments: Any, on: ModuleType = serial) -> Any:
    """Run the compiled loop, also where compiled code cannot be kept, as on a full disk."""
    run = load_compiled(on).run
    if run in _warm:  # and not run.signatures: numba hashes the types of all arrays for that
        return run(*arguments)
    with uninterrupted():  # compiles, or loads compiled code
        try:
            found = run(*arguments)
        except OSError:  # from numba's cache, after compiling and before running
            found = run(*arguments)
    _warm.add(run)
    return found


def _import_kernels(network: ModuleType) -> tuple[ModuleType, bool]:
    """Return all kernels as one module, and whether its compiled code is kept."""
    text, digest = _source(network)
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


def _source(network: ModuleType = serial) -> tuple[str, str]:
    """Return the text of all kernels, and a short name for it."""
    text = joined_text(network)
    # Numba does not notice changed options either, so they are hashed too. "0700": other users
    # could read the folders of earlier versions.
    return text, hashlib.sha256(f"{text}{_options(inline=True)}0700".encode()).hexdigest()[:16]


def _source_file(text: str, digest: str) -> Path:
    """Return the file that holds this text, in a folder that is private to this user."""
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
        os.link(file.name, path)  # unlike a rename, never replaces another process's file
    except FileExistsError:
        pass
    finally:
        os.unlink(file.name)


@contextmanager
def _numba_keeps_it_beside_the_source() -> Iterator[None]:
    """Keep numba from using the cache folder of its own settings, which may not be private."""
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
