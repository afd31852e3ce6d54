"""``bytelane doctor`` tells the truth, crashes on nothing, and leaves nothing behind."""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from bytelane.cli import doctor, probes
from bytelane.cli.doctor import Check, all_checks, examine
from bytelane.errors import LabError
from bytelane.lab import Lab
from bytelane.lab.abilities import Lacking
from bytelane.lab.tools import run_tool
from labs import need

CHECKS = all_checks()
SUPPORT = Path(__file__).parent.parent / "support"

NAMES = [
    "python",
    "numba",
    "matplotlib",
    "torch",
    "gloo",
    "pyzmq",
    "lab",
    "pacing",
    "namespaces",
    "queues",
    "compiler",
    "ns-3",
]

app = typer.Typer()
app.command()(doctor.doctor)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def crash() -> str:
    raise ZeroDivisionError("the probe broke")


def with_probe(name: str, probe: Callable[[], str]) -> list[Check]:
    """Every check, all well but one."""
    return [
        check._replace(probe=probe if check.name == name else lambda: "found") for check in CHECKS
    ]


def seen_by_the_kernel() -> tuple[str, list[str], list[str]]:
    """Named namespaces, devices and temporary folders of ours."""
    ip = shutil.which("ip")
    named = (
        subprocess.run([ip, "netns", "list"], capture_output=True, text=True).stdout if ip else ""
    )
    devices = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else []
    folders = sorted(str(path) for path in Path(tempfile.gettempdir()).glob("bytelane-doctor-*"))
    return named, devices, folders


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """The verb, run for real, once; whatever it made must be gone again."""
    before = seen_by_the_kernel()
    result = run("--json")
    assert result.exit_code in (0, 1)
    assert seen_by_the_kernel() == before
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 1)
    return found


@pytest.mark.timeout(300)
def test_json_has_every_check_in_order(real: dict[str, Any]) -> None:
    assert [check["name"] for check in real["checks"]] == NAMES
    for check in real["checks"]:
        assert list(check) == ["name", "status", "detail", "mend"]
        assert check["status"] in ("ok", "missing", "limited")
        assert check["detail"]


@pytest.mark.timeout(300)
def test_exactly_what_is_not_ok_has_a_mend(real: dict[str, Any]) -> None:
    for check in real["checks"]:
        assert bool(check["mend"]) == (check["status"] != "ok"), check


@pytest.mark.timeout(300)
def test_what_the_tests_themselves_run_on_is_found(real: dict[str, Any]) -> None:
    status = {check["name"]: check["status"] for check in real["checks"]}
    assert status["python"] == "ok"
    for module in ("numba", "matplotlib", "torch"):
        if importlib.util.find_spec(module) is None:
            assert status[module] == "missing"


@pytest.mark.parametrize("name", NAMES)
def test_a_probe_that_crashes_is_a_finding(name: str) -> None:
    check = next(check for check in CHECKS if check.name == name)
    found = examine(check._replace(probe=crash))
    assert (found.name, found.status, found.mend) == (name, "missing", check.mend)
    assert found.detail == f"ZeroDivisionError: the probe broke ({check.purpose})"


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_required_fails_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "all_checks", lambda: with_probe(name, crash))
    result = run("--json")
    required = name == "python"
    assert json.loads(result.stdout)["ok"] is not required
    assert result.exit_code == (1 if required else 0)


def test_text_fits_80_columns_and_keeps_commands_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "all_checks", lambda: with_probe("numba", crash))
    monkeypatch.setenv("COLUMNS", "80")
    result = run()
    assert result.exit_code == 0
    table, mends = result.stdout.split("\nTo mend:\n")
    assert [line.split()[0] for line in table.splitlines() if line[0] != " "] == NAMES
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "  numba       pip install 'bytelane[sim]'\n" in mends  # not eaten as rich's markup
    assert mends.endswith("\nAll that is required works; the rest is optional.\n")


def test_an_older_python_or_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {check.name: check for check in CHECKS}
    monkeypatch.setattr(probes, "OLDEST_PYTHON", (99, 0))
    assert examine(checks["python"]).status == "missing"
    monkeypatch.setattr(probes, "try_import", lambda *_: "2.5.1+cpu")
    probes.try_torch.cache_clear()
    found = examine(checks["torch"])
    assert (found.status, found.mend) == ("limited", "pip install --upgrade 'bytelane[torch]'")
    monkeypatch.setattr(probes, "try_import", lambda *_: "2.10.0")
    assert examine(checks["torch"]).status == "ok"
    probes.try_torch.cache_clear()


def test_a_torch_that_lacks_private_names_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(probes, "try_import", lambda *_: "2.14.0")
    check = next(check for check in CHECKS if check.name == "torch")
    code = probes._TORCH_NAMES
    for path, status, words in (
        ("torch._C._ForceDispatchKeyGuard", "limited", "which bytelane needs to make deferred"),
        ("torch._foreach_mul_", "ok", "gradients are divided one by one"),
    ):
        hide = f"import lacking; lacking.hide(0, [{path!r}])"
        monkeypatch.setattr(probes, "_TORCH_NAMES", f"{hide}\n{code}")
        probes.try_torch.cache_clear()
        found = examine(check)
        assert (found.status, found.mend is None) == (status, status == "ok")
        assert f"has no {path}" in found.detail
        assert words in found.detail
    probes.try_torch.cache_clear()


@pytest.mark.parametrize("name", ["numba", "matplotlib", "torch", "gloo"])
def test_a_package_that_is_absent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    probes.try_torch.cache_clear()
    check = next(check for check in CHECKS if check.name == name)
    found = examine(check)
    assert found.status == "missing"
    assert found.detail.startswith("not installed")
    assert found.mend is not None
    assert found.mend.startswith("pip install 'bytelane[")


def test_a_package_that_is_there_but_broken() -> None:
    with pytest.raises(Lacking, match="installed, but fails: AssertionError") as caught:
        probes.try_import("json", "unused", "assert False")
    assert caught.value.mend == "pip install --force-reinstall json"


@pytest.mark.parametrize("name", ["lab", "pacing", "namespaces", "queues"])
def test_elsewhere_than_on_linux(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    found = examine(next(check for check in CHECKS if check.name == name))
    assert (found.status, found.detail.split(" (")[0]) == ("missing", "needs Linux")
    assert found.mend is not None
    assert "docker run" in found.mend


@pytest.mark.parametrize("name", ["namespaces", "queues", "compiler"])
def test_without_the_tools(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    found = examine(next(check for check in CHECKS if check.name == name))
    assert found.status == "missing"
    assert found.mend is not None
    assert found.mend.startswith("sudo apt install ")


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_the_host_is_safe_from_an_unshare_that_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    fakes = {
        "unshare": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "ip": f"echo ip >> {log}",
        "tc": f"echo tc >> {log}",
    }
    for name, body in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("namespaces", "queues"):
        found = examine(next(check for check in CHECKS if check.name == name))
        assert (found.status, found.detail.split(" (")[0]) == ("missing", "got no namespace")
    assert not log.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the laboratory is Linux's")
def test_a_machine_without_namespaces_has_the_other_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bytelane.lab.control.NAMESPACES", ["--no-such-option"])
    found = examine(next(check for check in CHECKS if check.name == "lab"))
    assert (found.status, found.detail.split(":")[0]) == (
        "limited",
        "mode pacing, without priorities",
    )
    assert found.mend


@pytest.mark.skipif(sys.platform != "linux", reason="the laboratory is Linux's")
def test_a_kernel_without_htb_has_links_but_no_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    need("namespace")
    monkeypatch.setattr(Lab, "__enter__", refuse_priority(Lab.__enter__))
    found = examine(next(check for check in CHECKS if check.name == "lab"))
    assert found.status == "limited"
    assert found.detail.startswith("mode namespace, without priorities: no htb")


def refuse_priority(enter: Callable[[Lab], Lab]) -> Callable[[Lab], Lab]:
    def entering(lab: Lab) -> Lab:
        if lab.priority:
            raise LabError("no htb")
        return enter(lab)

    return entering


@pytest.mark.timeout(30)
def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    late = tmp_path / "late"
    with pytest.raises(LabError, match=r"no answer within 0\.5 s"):
        run_tool(["sh", "-c", f"(sleep 2; touch {late}) & wait"], limit_s=0.5)
    time.sleep(2.5)
    assert not late.exists()


def test_nothing_heavy_is_imported_for_the_help() -> None:
    code = "import sys, bytelane.cli.doctor; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numba", "matplotlib", "numpy"} & set(out.stdout.split())
