"""The example of a policy of one's own runs, keeps the contract, and fits on a page."""

import subprocess
import sys
from pathlib import Path

from bytelane.testing import PolicyContract

EXAMPLES = Path(__file__).parents[2] / "examples"
RULES = [name for name in vars(PolicyContract) if name.startswith("test_")]


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_shown_beside_the_policies_of_the_literature() -> None:
    output = run("examples/own_policy.py")
    cheap, dear = (
        {name: float(ms) for name, ms, _ in (line.split() for line in part.splitlines()[1:])}
        for part in output.split("resnet50, ")[1:]
    )
    assert dear["carpool"] == min(ms for name, ms in dear.items() if name != "optimal")
    assert cheap["carpool"] < cheap["bytescheduler"]


def test_it_keeps_every_rule_of_the_contract() -> None:
    output = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/test_own_policy.py")
    assert f"{len(RULES) + 1} passed" in output


def test_policy_and_contract_are_twenty_lines_each() -> None:
    policy = (EXAMPLES / "own_policy.py").read_text()
    start, end = policy.index("@register"), policy.index("def main")
    assert len(policy[start:end].strip().splitlines()) <= 20
    assert len((EXAMPLES / "test_own_policy.py").read_text().splitlines()) <= 20
