"""What is public is listed once, is there, and costs nothing until it is used."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import bytelane

ROOT = Path(bytelane.__file__).parent
HEAVY = {"torch", "numba", "matplotlib"}


def packages() -> list[str]:
    """Those with something to export; the others only hold packages."""
    folders = [p.parent for p in ROOT.rglob("__init__.py") if "__all__" in p.read_text()]
    return sorted(".".join(folder.relative_to(ROOT.parent).parts) for folder in folders)


def load(name: str) -> ModuleType:
    if "torch" in name:
        pytest.importorskip("torch")
    return importlib.import_module(name)


def test_the_packages_are_found() -> None:
    assert {"bytelane", "bytelane.job", "bytelane.core", "bytelane.sim"} <= set(packages())


@pytest.mark.parametrize("name", packages())
def test_every_listed_name_is_there(name: str) -> None:
    package = load(name)
    assert [one for one in package.__all__ if not hasattr(package, one)] == []


@pytest.mark.parametrize("name", packages())
def test_the_list_is_sorted_and_without_repetition(name: str) -> None:
    listed = load(name).__all__
    assert listed == sorted(set(listed))


@pytest.mark.parametrize("name", [name for name in packages() if name != "bytelane"])
def test_every_public_name_is_listed(name: str) -> None:
    package = load(name)
    public = {one for one in vars(package) if not one.startswith("_")}
    submodules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert public - submodules <= set(package.__all__)


def test_the_root_shows_exactly_its_list() -> None:
    assert dir(bytelane) == bytelane.__all__
    with pytest.raises(AttributeError, match="'bytelane' has no attribute 'nonsense'"):
        bytelane.nonsense  # noqa: B018


def test_a_lazy_name_is_the_one_from_its_home() -> None:
    from bytelane.api import simulate
    from bytelane.job import Job

    assert bytelane.simulate is simulate
    assert bytelane.Job is Job


@pytest.mark.parametrize(
    "statement",
    [
        "import bytelane",
        "import bytelane.cli.main",
        "from bytelane import Job, Cluster, profile, simulate",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(statement: str) -> None:
    code = f"import sys; {statement}; print(*sys.modules.keys() & {HEAVY})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
