"""Private names of torch, numba and Lightning are used in ``bytelane.foreign`` alone."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import bytelane
from bytelane.foreign import names
from bytelane.foreign import numba as foreign_numba
from bytelane.foreign import torch as foreign_torch
from bytelane.foreign.lightning import call_as_forward
from bytelane.foreign.names import OLDEST_TORCH, TESTED_TORCH, Name, find
from bytelane.foreign.torch_names import NAMES

SOURCE = Path(bytelane.__file__).parent
ROOT = SOURCE.parent.parent
FOREIGN = ("torch", "numba", "lightning", "accelerate", "transformers")
# Public, although they begin with an underscore.
PUBLIC = {"_asdict", "_fields", "_make", "_replace", "_exit", "_getframe"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC | {"_"}


def own_names(tree: ast.AST) -> set[str]:
    """Return what a file defines itself: functions, classes, variables and attributes of self."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            found |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
    return found


@cache
def own_names_of(file: Path) -> set[str]:
    return own_names(ast.parse(file.read_text()))


def imported_files(tree: ast.AST) -> Iterator[Path]:
    """Return the files of ours that a file imports names from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bytelane."):
            path = SOURCE.joinpath(*str(node.module).split(".")[1:])
            yield from (one for one in (path.with_suffix(".py"),) if one.exists())


def strangers(text: str) -> list[str]:
    """Return the private names in a source text that neither it nor what it imports defines."""
    tree = ast.parse(text)
    known = own_names(tree)
    for file in imported_files(tree):
        known |= own_names_of(file)
    in_tables = {part for name in NAMES for part in name.path.split(".") if is_private(part)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOREIGN:
            path = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            found += [part for part in path if is_private(part)]
        elif isinstance(node, ast.Import):
            path = [part for alias in node.names for part in alias.name.split(".")]
            found += [part for part in path if path[0] in FOREIGN and is_private(part)]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            rooted = isinstance(node.value, ast.Name) and node.value.id in FOREIGN
            found += [node.attr] if rooted or node.attr not in known else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("getattr", "hasattr", "setattr", "delattr"):
                name = node.args[1]
                if isinstance(name, ast.Constant) and is_private(str(name.value)):
                    found.append(str(name.value))
        elif isinstance(node, ast.Constant) and node.value in in_tables | {"_nrt"}:
            found.append(str(node.value))
    return found


def sources() -> list[str]:
    files = (str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))
    return sorted(file for file in files if not file.startswith("foreign/"))


def test_no_file_uses_a_private_name_of_another_library() -> None:
    found = {file: strangers((SOURCE / file).read_text()) for file in sources()}
    assert {file: used for file, used in found.items() if used} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch._C.f()",
        "import torch._dynamo",
        "from torch._C import f",
        "from torch.overrides import _push_mode",
        "def f(module): return module._parameters",
        "def f(module): return getattr(module, '_orig_mod', None)",
        "class A(Accelerator):\n    def f(self): return self._optimizers",
        "options = {'_nrt': False}",
        "def f(module, call): module._compiled_call_impl = call",
    ],
)
def test_a_private_name_is_found_however_it_is_written(text: str) -> None:
    assert strangers(text)


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    def f(self):\n        self._mine = 1\n        return self._mine",
        "import os\nos._exit(0)",
        "def f(pair): return pair._replace(a=1)",
        "import torch\ntorch.nn.Module()",
        "_mine = 1\nprint(_mine)",
    ],
)
def test_names_of_our_own_and_public_ones_pass(text: str) -> None:
    assert strangers(text) == []


# --- the self-check ------------------------------------------------------------------------------


def test_nothing_is_missing_from_the_tested_version() -> None:
    assert foreign_torch.missing() == foreign_torch.replaced() == []
    assert foreign_numba.replaced() == []


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.path)
def test_a_name_that_was_taken_away_is_named(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, last = name.path.rpartition(".")
    samples = foreign_torch._samples()
    monkeypatch.setattr(foreign_torch, "_samples", lambda: samples)
    monkeypatch.delattr(find(owner, samples), last)
    listed, other = foreign_torch.missing(), foreign_torch.replaced()
    if name.has_fallback:
        listed, other = other, listed
    assert other == []
    assert listed[0].startswith(f"torch {torch.__version__} has no {name.path}")
    assert name.has_fallback or listed[0].endswith("; use torch 2.9 to 2.13")


def test_a_module_that_was_taken_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.utils, "_python_dispatch")
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    (sentence,) = foreign_torch.missing()
    assert "torch.utils._python_dispatch._disable_current_modes" in sentence


def test_numba_is_not_given_an_option_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in find("numba.core.cpu.CPUTargetOptions").__mro__:
        if "_nrt" in vars(kind):
            monkeypatch.delattr(kind, "_nrt")
    assert foreign_numba.without_reference_counting() == {}
    (sentence,) = foreign_numba.replaced()
    assert "20 times" in sentence


class Trained(torch.nn.Linear):
    """A module as Lightning trains it."""

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 0:
            raise ValueError("nothing to train with")
        return self(x).sum()


def test_without_lightnings_own_way_a_step_goes_through_the_module_all_the_same() -> None:
    module, passed = Trained(2, 2), []
    module.register_forward_pre_hook(lambda *_: passed.append("hook"))
    found = call_as_forward(object(), module, "training_step", torch.ones(1, 2))
    assert torch.equal(found, module(torch.ones(1, 2)).sum())
    assert passed == ["hook"] * 3  # of the step, of the forward pass within it, and of this one
    with pytest.raises(ValueError, match="nothing to train with"):
        call_as_forward(object(), module, "training_step", torch.ones(0, 2))
    assert "forward" not in vars(module)


# --- the declared range --------------------------------------------------------------------------


def test_the_declared_range_of_torch_is_the_one_that_is_checked() -> None:
    declared = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    pinned = re.search(r"^torch==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert declared is not None
    assert pinned is not None
    assert declared[1] == ".".join(map(str, OLDEST_TORCH))
    assert (int(pinned[1]), int(pinned[2])) == TESTED_TORCH


@pytest.mark.parametrize(
    ("version", "too_old"),
    [("2.8.0", True), ("1.13.1+cu117", True), ("2.9.0", False), ("2.15.0a0+git1", False)],
)
def test_a_version_is_too_old_or_not(version: str, too_old: bool) -> None:
    assert names.is_too_old(version) is too_old


PREPARE = """
import bytelane, torch

def prepare():
    model = torch.nn.Linear(2, 2)
    try:
        bytelane.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    except bytelane.BytelaneError as error:
        print(type(error).__name__, error)

version, torch.__version__ = torch.__version__, "2.6.0"
prepare()
torch.__version__, options = version, torch.distributed.AllreduceCoalescedOptions
del torch.distributed.AllreduceCoalescedOptions
prepare()
torch.distributed.AllreduceCoalescedOptions = options
del torch.optim.Muon
prepare()
"""


def test_another_torch_gets_a_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", PREPARE], capture_output=True, text=True)
    assert done.stderr == ""
    old, lacking, without_muon = done.stdout.splitlines()
    assert old == "NotSupported torch 2.6.0 is too old for training; use torch 2.9 to 2.13"
    assert "lacks something that training needs; use torch 2.9 to 2.13 (" in lacking
    assert without_muon == "bytelane: one worker, nothing to synchronise"
