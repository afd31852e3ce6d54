"""Installed packages bring policies along; nobody's code runs before it is wanted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A package's policies: two lines more than the smallest, to see when it is imported.
MODULE = """
print("imported")
from bytelane.core import Policy, Stage, register

@register({name!r}, sync=("allreduce",))
def mine(job, cluster, knobs):
    return Policy({name!r}, (Stage("all-reduce", (0,) * len(job.tensors)),), barrier=True)
"""
ASK = """
from bytelane import plugins
from bytelane.core import policy_names
before = policy_names()
{statements}
print(*policy_names()[len(before):])
"""


def install(folder: Path, package: str, text: str) -> None:
    """Do what pip does: a module, and beside it what the package is and offers."""
    (folder / f"{package}.py").write_text(text)
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[bytelane.policies]\n{package} = {package}\n")


def ask(folder: Path, *statements: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(statements="\n".join(statements))],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("statement", "output"),
    [
        ("plugins.look_for('fifo')", ""),
        ("plugins.look_for('mine')", "imported\nmine"),
        ("plugins.load_policies()", "imported\nmine"),
        ("plugins.load_policies(); plugins.look_for('nonsense')", "imported\nmine"),
    ],
)
def test_a_package_is_imported_once_and_only_when_it_is_wanted(
    tmp_path: Path, statement: str, output: str
) -> None:
    install(tmp_path, "theirs", MODULE.format(name="mine"))
    assert ask(tmp_path, statement) == (output, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        (MODULE.format(name="fifo"), "InputError: there is already a policy 'fifo'"),
    ],
)
def test_a_package_that_cannot_be_used_is_named_and_the_others_are_loaded(
    tmp_path: Path, text: str, reason: str
) -> None:
    install(tmp_path, "broken", text)
    install(tmp_path, "theirs", MODULE.format(name="mine"))
    output, said = ask(tmp_path, "plugins.load_policies()")
    assert output.splitlines()[-1] == "mine"
    assert said.startswith(f"bytelane: the policies of broken (broken) cannot be used: {reason}")


def test_the_commands_know_it(tmp_path: Path) -> None:
    install(tmp_path, "theirs", MODULE.format(name="mine"))
    done = subprocess.run(
        [sys.executable, "-m", "bytelane", "simulate", "alexnet", "--policy", "mine"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "by mine: 16 operations" in done.stdout
