"""The scripts behind the two commands of the README."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def run(name: str) -> dict[str, object]:
    return runpy.run_path(str(TOOLS / name), run_name="__main__")


def test_a_missing_venv_module_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as end:
        run("check_python.py")
    assert "no module venv" in str(end.value)
    assert "apt-get install python3-venv" in str(end.value)


def test_an_old_python_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit) as end:
        run("check_python.py")
    assert "needs Python 3.11 or newer" in str(end.value)


def test_a_good_python_passes_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    run("check_python.py")
    assert capsys.readouterr() == ("", "")


def test_a_torch_that_is_not_there_is_not_usable(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-S", str(TOOLS / "has_torch.py")], timeout=60)
    assert done.returncode == 1


@pytest.mark.parametrize(("version", "usable"), [("2.8.0", 1), ("2.9.0", 0), ("2.13.0+cpu", 0)])
def test_a_torch_is_usable_from_2_9_on(tmp_path: Path, version: str, usable: int) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (package / "distributed.py").write_text(
        "def is_available(): return True\ndef is_gloo_available(): return True\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", str(TOOLS / "has_torch.py")],
        env={"PYTHONPATH": str(tmp_path)},
        timeout=60,
    )
    assert done.returncode == usable


def test_an_installed_torch_is_not_pinned_away() -> None:
    spec = importlib.util.spec_from_file_location("install", TOOLS / "install.py")
    assert spec is not None
    assert spec.loader is not None
    install = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(install)
    assert "\ntorch==" in install._pins(keep_torch=True)
    assert "\ntorch==" not in install._pins(keep_torch=False)
    assert "\nnumpy==" in install._pins(keep_torch=False)
