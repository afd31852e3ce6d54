"""What keeps the code readable: short functions, classes with one task, few arguments."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 58
MOST_METHODS = 25
MOST_ARGUMENTS = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


def nodes(path: Path) -> Iterator[ast.AST]:
    yield from ast.walk(ast.parse(path.read_text()))


@pytest.mark.parametrize("room", ["src", "tests", "benchmarks", "examples", "docs"])
def test_no_function_is_longer_than_a_screen(room: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}: {node.name} has {length} lines"
        for path in (ROOT / room).rglob("*.py")
        for node in nodes(path)
        if isinstance(node, Function)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES
    ]
    assert not long


def test_no_class_does_too_much() -> None:
    large = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in nodes(path):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = [one for one in node.body if isinstance(one, Function)]
            if len(methods) > MOST_METHODS:
                large.append(f"{path.relative_to(ROOT)}: {node.name} has {len(methods)} methods")
            for method in methods:
                given = method.args
                count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1
                if method.name == "__init__" and count > MOST_ARGUMENTS:
                    large.append(f"{path.relative_to(ROOT)}: {node.name} takes {count} arguments")
    assert not large
