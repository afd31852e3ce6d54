"""Generate the tables of policies, of contract rules and of experiments."""

import ast
import inspect
from pathlib import Path

from bytelane.core import policy_entry, policy_names
from bytelane.testing import PolicyContract

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def policy_table() -> str:
    """Return every built-in policy with its docstring and its knobs."""
    lines = ["| policy | what it does | for | knobs and their defaults |", "|---|---|---|---|"]
    for name in policy_names():
        entry = policy_entry(name)
        knobs = [f"{knob.name} {knob.default_in_words}" for knob in entry.knobs]
        ways = ", ".join(entry.sync)
        lines.append(f"| `{name}` | {entry.doc} | {ways} | {', '.join(knobs) or 'none'} |")
    return "\n".join(lines) + "\n"


def contract_rules() -> str:
    """Return every rule of the contract, and why it matters."""
    lines = ["| rule | why it matters |", "|---|---|"]
    for name, check in vars(PolicyContract).items():
        if name.startswith("test_"):
            statement, _, why = (inspect.getdoc(check) or "").partition("\n\n")
            lines.append(f"| {statement} | {' '.join(why.split())} |")
    return "\n".join(lines) + "\n"


def experiment_table() -> str:
    """Return every experiment with the first line of its docstring."""
    lines = ["| command | what it runs again |", "|---|---|"]
    for run in sorted(EXPERIMENTS.glob("*/run.py")):
        doc = ast.get_docstring(ast.parse(run.read_text())) or ""
        about = " ".join(doc.partition("\n\n")[0].split())
        lines.append(f"| `python experiments/{run.parent.name}/run.py` | {about} |")
    return "\n".join(lines) + "\n"
