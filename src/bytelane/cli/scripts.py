"""Check a training script before it is started."""

import ast
import warnings
from pathlib import Path

from bytelane.errors import InputError
from bytelane.files import read_text
from bytelane.values import shown

WRAPPER = "DistributedDataParallel"


def require_script(path: Path) -> str:
    """Return the text of a Python script; refuse a file that is none.

    Syntax errors of a file called .py are left to Python's own message.
    """
    text = read_text(path)
    if path.suffix in (".toml", ".json"):
        raise InputError(f"{path}: is no Python script (bytelane simulate takes a job file)")
    if path.suffix == ".py":
        return text
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except SyntaxError as error:
        where = f"{path}, line {error.lineno}" if error.lineno else str(path)
        raise InputError(f"{where}: is no Python script: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path}: is no Python script: {shown(str(error))}") from None
    return text


def require_not_prepared(path: Path, text: str) -> None:
    """Refuse a script that only trains with Bytelane: there is no DDP to compare it with."""
    if WRAPPER in text:
        return  # it may use either, depending on its arguments
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # Python will report it
    modules, functions = {"bytelane"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.asname for name in node.names if name.asname and name.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module in ("bytelane", "bytelane.api"):
            functions |= {name.asname or name.name for name in node.names if name.name == "prepare"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_prepare(node.func, modules, functions):
            raise InputError(
                f"{path}, line {node.lineno}: calls bytelane.prepare already; try takes the script "
                f"as it was, with {WRAPPER}"
            )


def _is_prepare(called: ast.expr, modules: set[str], functions: set[str]) -> bool:
    if isinstance(called, ast.Attribute) and called.attr == "prepare":
        return isinstance(called.value, ast.Name) and called.value.id in modules
    return isinstance(called, ast.Name) and called.id in functions
