"""Run the commands and doctests that the pages show, and compare their output with the pages.

* A ``console`` block is a list of ``$ command`` lines, each followed by its output, word for word;
  ``...`` stands for anything. After a command that fails the last line is ``[exit code N]``.
* A ``pycon`` block is a doctest.
* A ``{code-block}`` with a ``:caption:`` is a file of that name.

A page is one session: its blocks run one after another in one new folder, in which ``examples`` and
``experiments`` are those of the repository. ``python docs/console.py`` checks all pages,
``python docs/console.py --write`` puts the real output into them.
"""

import doctest
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 100
# A torch that is installed in the system adds no torchrun to a virtual environment.
TORCHRUN = 'torchrun() { python -m torch.distributed.run "$@"; }'
FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of a page that can be run, or a file that other blocks need."""

    kind: str
    """console, pycon, or the name of a file."""
    body: str
    start: int
    end: int


def pages() -> list[Path]:
    """Return all pages that show something to run."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [p for p in found if "generated" not in p.parts and list(runnable(p.read_text()))]


def runnable(text: str) -> Iterator[Block]:
    """Yield the blocks of a page that can be run, and the files that they need."""
    for match in FENCE.finditer(text):
        kind, body = match["kind"].strip(), match["body"]
        caption = re.match(r":caption: (\S+)\n+", body)
        if kind in ("console", "pycon") or (not kind and body.startswith("$ bytelane ")):
            yield Block(kind or "console", body, match.start("body"), match.end("body"))
        elif caption:
            yield Block(caption[1], body[caption.end() :], match.start("body"), match.end("body"))


def differences(page: Path) -> list[str]:
    """Run a page; return every difference between the page and the real output."""
    with _session() as folder:
        return [
            f"{page.name}: {wrong}"
            for block in runnable(page.read_text())
            for wrong in _wrong(block, Path(folder))
        ]


def _wrong(block: Block, folder: Path) -> Iterator[str]:
    if block.kind == "pycon":
        yield from _wrong_in_doctest(block.body, folder)
    elif block.kind == "console":
        for command, wanted in _steps(block.body):
            got = _run(command, folder)
            if not doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS):
                yield f"$ {command}\n--- the page says\n{wanted}--- but it is\n{got}"
    else:
        (folder / block.kind).write_text(block.body)


def written(page: Path) -> str:
    """Return the page with the real output; output with an ellipsis that still fits is kept."""
    text = page.read_text()
    with _session() as folder:
        done = []
        for block in runnable(text):
            body = block.body
            if block.kind == "console":
                body = "".join(_step_text(*step, Path(folder)) for step in _steps(body))
                done.append((block, body))
            elif block.kind != "pycon":
                (Path(folder) / block.kind).write_text(body)
    for block, body in reversed(done):
        text = text[: block.start] + body + text[block.end :]
    return text


def _step_text(command: str, wanted: str, folder: Path) -> str:
    got = _run(command, folder)
    if "Traceback (most recent call last)" in got:
        raise RuntimeError(f"$ {command}\n{got}")  # never something to show
    fits = doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS)
    return f"$ {command}\n{wanted if fits else got}"


def _steps(body: str) -> Iterator[tuple[str, str]]:
    """Split a console block into commands and what follows each of them."""
    for step in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, output = step.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command = f"{command}\n{more}"
        yield command, output


def _session() -> "tempfile.TemporaryDirectory[str]":
    folder = tempfile.TemporaryDirectory(prefix="bytelane-docs-")
    for name in ("examples", "experiments"):
        (Path(folder.name) / name).symlink_to(ROOT / name)
    return folder


def _run(command: str, folder: Path) -> str:
    """Run a command line as a reader would; return its output, and its exit code unless 0."""
    done = subprocess.run(
        ["bash", "-c", f"{TORCHRUN}\n{command}"],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.stdout + (f"[exit code {done.returncode}]\n" if done.returncode else "")


def _wrong_in_doctest(body: str, folder: Path) -> Iterator[str]:
    (folder / "page.txt").write_text(body)
    command = [sys.executable, "-m", "doctest", "-o", "ELLIPSIS", "page.txt"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        yield done.stdout + done.stderr


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    # No cache files beside the examples, which are the repository's own.
    clean = {"PYTEST_ADDOPTS": "-p no:cacheprovider", "PYTHONDONTWRITEBYTECODE": "1"}
    return os.environ | plain | loopback | clean | {"PATH": path}


def main() -> int:
    """Check all pages, or write real output into them."""
    if "--write" in sys.argv[1:]:
        for page in pages():
            page.write_text(written(page))
        return 0
    wrong = [text for page in pages() for text in differences(page)]
    print("\n".join(wrong) or "the output of every command is as its page says")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
