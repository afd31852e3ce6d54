"""Say which lines of a script to change, in the script's own names."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from bytelane.bench.script.trial import Line, Wrapped

DDP = "DistributedDataParallel"
# Libraries that wrap models themselves, by the folder they are in.
LIBRARIES = {
    "accelerate": "Accelerate wraps the model: make a BytelaneAccelerator instead of an "
    "Accelerator, or with Transformers a BytelaneTrainer instead of a Trainer",
    "lightning": "Lightning wraps the model: give its Trainer strategy=BytelaneStrategy()",
}
# Attributes of DDP that the model itself does not have, and their replacements.
REPLACED = {
    "module": "{name}",
    "no_sync": "bytelane.no_sync({name})",
    "join": "bytelane.join({name})",
}


def advise(wrapped: Wrapped) -> list[str]:
    """Return the lines to change where one model is wrapped."""
    for folder, sentence in LIBRARIES.items():
        if folder in Path(wrapped.at.file).parts:
            return [f"to train with it: {sentence}"]
    try:
        return list(_Script(wrapped.at).advice(wrapped.optimizers))
    except (OSError, SyntaxError, ValueError, LookupError):  # no such file, or another content
        return _plain_advice(wrapped.at)


def _plain_advice(line: Line) -> list[str]:
    return [
        f"to train with it, in {line.file}, line {line.number}, instead of",
        f"    {line.text}",
        "write, after the optimizer is made and with import bytelane above,",
        "    bytelane.prepare(model, optimizer)",
    ]


class _Script:
    """The file in which a model is wrapped; LookupError if that line calls something else."""

    def __init__(self, at: Line) -> None:
        self._at = at
        self._text = Path(at.file).read_text()
        self._tree = ast.parse(self._text)
        self._call = self._find_call()
        self._statement = self._statement_at(at.number)
        self._inner = ast.unparse(_first_argument(self._call))
        self._target = _target(self._statement)
        self._name = self._target or self._inner

    def advice(self, optimizers: Sequence[Line]) -> Iterator[str]:
        made = [line for line in optimizers if self._is_beside(line)]
        names = [_target(self._statement_at(line.number)) or "optimizer" for line in made]
        names = names or ["optimizer"]
        given = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
        prepare = f"    bytelane.prepare({self._name}, {given})"
        yield f"to train with it, in {self._at.file}, with import bytelane above:"
        last = max((self._end_of(line) for line in made), default=0)
        left = self._without_ddp()
        if made and last < self._statement.lineno:
            yield from (f"{self._where()}, instead of", f"    {self._at.text}", "write")
            yield from (*([f"    {left}"] if left else []), prepare)
        else:
            yield f"{self._where()}, {'instead of' if left else 'leave out'}"
            yield f"    {self._at.text}"
            yield from (("write", f"    {left}") if left else ())
            after = f"after line {last}" if last else "after the optimizer is made"
            yield from (f"{after}, add", prepare)
        yield from self._uses()

    def _where(self) -> str:
        return f"line {self._at.number}"

    def _find_call(self) -> ast.Call:
        """Find the call of DistributedDataParallel, by whichever name it was imported."""
        names = {DDP} | {
            alias.asname or alias.name
            for node in ast.walk(self._tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name == DDP
        }
        found = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call)
            and node.lineno <= self._at.number <= (node.end_lineno or node.lineno)
            and ast.unparse(node.func).rpartition(".")[2] in names
        ]
        return found[0]

    def _statement_at(self, number: int) -> ast.stmt:
        around = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.stmt)
            and node.lineno <= number <= (node.end_lineno or node.lineno)
        ]
        return around[-1]  # walk() goes from the outside in

    def _end_of(self, line: Line) -> int:
        statement = self._statement_at(line.number)
        return statement.end_lineno or statement.lineno

    def _is_beside(self, line: Line) -> bool:
        """Tell whether a line is in the same function, so that its names mean the same."""
        return line.file == self._at.file and self._shares_names(line.number)

    def _shares_names(self, number: int) -> bool:
        return self._scope(number) == self._scope(self._at.number)

    def _scope(self, number: int) -> int:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        starts = [
            node.lineno
            for node in ast.walk(self._tree)
            if isinstance(node, kinds) and node.lineno <= number <= (node.end_lineno or 0)
        ]
        return max(starts, default=0)

    def _without_ddp(self) -> str:
        """Return the statement with the model instead of the DDP call; empty if that is a no-op."""
        whole = ast.get_source_segment(self._text, self._statement) or ""
        call = ast.get_source_segment(self._text, self._call) or ""
        left = whole.replace(call, self._inner, 1)
        value = getattr(self._statement, "value", None)
        is_all = value is self._call
        return "" if is_all and self._target in (self._inner, "") else " ".join(left.split())

    def _uses(self) -> Iterator[str]:
        """Name the lines that use attributes of DDP, except lines before the model is wrapped."""
        found: dict[str, set[int]] = defaultdict(set)
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Attribute) or ast.unparse(node.value) != self._name:
                continue
            if node.lineno > self._at.number or not self._shares_names(node.lineno):
                found[node.attr].add(node.lineno)
        for attribute, instead in REPLACED.items():
            if attribute in found:
                call = "" if attribute == "module" else "()"
                yield (
                    f"{_lines(found[attribute])}: {instead.format(name=self._name)} instead of "
                    f"{self._name}.{attribute}{call}"
                )
        if "state_dict" in found or "load_state_dict" in found:
            lines = _lines(found["state_dict"] | found["load_state_dict"])
            yield f"{lines}: the names have no module. in front any more"


def _first_argument(call: ast.Call) -> ast.expr:
    if call.args and not isinstance(call.args[0], ast.Starred):
        return call.args[0]
    return {keyword.arg: keyword.value for keyword in call.keywords}["module"]


def _target(statement: ast.stmt) -> str:
    """Return the one name or attribute that a statement assigns to, or an empty text."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return ""
    return ast.unparse(target) if isinstance(target, (ast.Name, ast.Attribute)) else ""


def _lines(numbers: set[int]) -> str:
    listed = ", ".join(map(str, sorted(numbers)))
    return f"line {listed}" if len(numbers) == 1 else f"lines {listed}"
