"""Generate the tables in docs/cases.md from the tests of the cases; run this to renew them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[2] / "tests" / "support" / "cases"
THEMES = (
    "loops",
    "optimizers",
    "models",
    "precision",
    "lifecycle",
    "compiling",
    "sparse",
    "refusals",
)
OUTCOMES = {
    "exact": "the same weights",
    "barrier": "the same weights; waits for all",
    "rounded": "the same weights up to rounding",
    "servers": 'the same weights with `sync="ps"`; refused otherwise',
    "refused": "refused",
}


PAGE = Path(__file__).parents[1] / "cases.md"


def main() -> None:
    """Write the tables into the page, between its introduction and its last section."""
    text = PAGE.read_text()
    first = case_tables().partition("\n")[0]
    head, tail = text.partition(first)[0], text.partition("## At random")[2]
    PAGE.write_text(f"{head}{case_tables()}\n## At random{tail}")


def case_tables() -> str:
    """Return one table per theme: what a user does, what happens, and why."""
    return "\n".join(_table(theme) for theme in THEMES)


def decorators(theme: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments of every ``@case`` of a theme, without importing torch."""
    for node in ast.parse((CASES / f"{theme}.py").read_text()).body:
        for call in getattr(node, "decorator_list", []):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "case":
                title, outcome = (ast.literal_eval(argument) for argument in call.args)
                keywords = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
                yield {"title": title, "outcome": outcome, **keywords}


def _table(theme: str) -> str:
    heading = ast.get_docstring(ast.parse((CASES / f"{theme}.py").read_text())) or ""
    rows = [
        f"| {found['title']}{_ways(found)} | {OUTCOMES[found['outcome']]} | {found['why']} |"
        for found in decorators(theme)
    ]
    lines = [
        f"## {heading.rstrip('.')}",
        "",
        "| what you do | what you get | why |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *rows]) + "\n"


def _ways(found: dict[str, Any]) -> str:
    ways = found.get("ways", ())
    return f"<br>({'; '.join(ways)})" if ways else ""


if __name__ == "__main__":
    main()
