"""The docs say what is so: commands are run, names are looked up, pictures come from runs."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from bytelane.core import policy_names
from bytelane.testing import PolicyContract

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "generated" not in p.parts)


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


console = load(DOCS / "console.py", "console")


@pytest.fixture(scope="module")
def generators() -> Iterator[ModuleType]:
    pytest.importorskip("matplotlib")
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module("generators")
    sys.path.remove(str(DOCS))


# --- what pages show is what happens --------------------------------------------------------------


@pytest.mark.parametrize("page", console.pages(), ids=lambda page: page.stem)
def test_commands_print_what_the_page_says(page: Path) -> None:
    wrong = "\n".join(console.differences(page))
    assert not wrong, f"{wrong}\nif this is meant: python docs/console.py --write"


def test_a_page_that_lies_is_caught(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```{code-block} text\n:caption: note.txt\n\nhello\n```\n"
        "```console\n$ cat note.txt\nhello\n$ echo right; false\nright\n[exit code 1]\n```\n"
        "```console\n$ echo anything\nany...\n$ echo 'one \\\ntwo'\none \\\ntwo\n```\n"
        "```pycon\n>>> 1 + 1\n2\n\n```\n"
    )
    assert console.differences(page) == []
    page.write_text(page.read_text().replace("hello\n$", "goodbye\n$").replace(">>> 1", ">>> 2"))
    said, summed = console.differences(page)
    assert "--- the page says\ngoodbye\n--- but it is\nhello\n" in said
    assert "Expected:\n    2\nGot:\n    3" in summed
    page.write_text(console.written(page))
    assert "$ cat note.txt\nhello\n$ echo right" in page.read_text()


# --- names that pages use are there ---------------------------------------------------------------


def heading_anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target or path.startswith(("generated/", "../generated/")):
            continue
        assert (page.parent / path).exists(), target
        if anchor:
            assert anchor in heading_anchors((page.parent / path).read_text()), target


def test_the_map_from_papers_to_code_names_what_is_there() -> None:
    text = (DOCS / "papers-to-code.md").read_text()
    places = re.findall(r"`([\w/]+\.py):(\w+)`", text)
    assert len(places) > 15
    for path, name in places:
        source = (ROOT / "src" / "bytelane" / path).read_text()
        assert re.search(rf"^\s*(def|class) {name}\b", source, re.MULTILINE), (path, name)


def test_every_experiment_is_on_the_map() -> None:
    text = (DOCS / "papers-to-code.md").read_text()
    for run in (ROOT / "experiments").glob("*/run.py"):
        assert f"`{run.parent.name}`" in text


def test_every_policy_is_explained() -> None:
    text = (DOCS / "policies.md").read_text()
    assert [name for name in policy_names() if f"`{name}`" not in text] == []


def test_the_front_page_leads_to_all_others() -> None:
    text = (DOCS / "index.md").read_text()
    names = [str(page.relative_to(DOCS).with_suffix("")) for page in PAGES]
    assert [name for name in names if name != "index" and f"\n{name}\n" not in text] == []


# --- what is generated ----------------------------------------------------------------------------


def test_every_command_and_option_is_in_the_reference(generators: ModuleType) -> None:
    text = generators.cli_reference()
    for command in ("simulate", "compare", "why", "zoo", "overlay", "doctor"):
        assert f"## `bytelane {command}`" in text
    assert "* `--bandwidth RATE`: Rate of each worker's link" in text
    assert "Example: `bytelane simulate resnet50" in text


def test_every_rule_of_the_contract_is_in_its_table(generators: ModuleType) -> None:
    rows = generators.contract_rules().splitlines()[2:]
    assert len(rows) == len([name for name in vars(PolicyContract) if name.startswith("test_")])
    assert all(len(row.split("|")) == 4 for row in rows)


def test_every_case_that_is_tested_is_in_its_table(generators: ModuleType) -> None:
    pytest.importorskip("torch")
    made = importlib.import_module("generators.cases")
    found = {row["title"]: row for theme in made.THEMES for row in made.decorators(theme)}
    tested = importlib.import_module("cases").CASES
    assert set(found) == set(tested)
    for title, entry in tested.items():
        row = found[title]
        assert (row["outcome"], row["why"]) == (entry.outcome, entry.why)
        assert f"| {title}" in made.case_tables()
    # Readers of a checkout see the tables too; python docs/generators/cases.py renews them.
    assert made.case_tables() in (DOCS / "cases.md").read_text()


def test_the_life_of_an_operation_is_as_observed(generators: ModuleType) -> None:
    assert importlib.import_module("generators.states").transitions() == {
        ("WAITING", "QUEUED"): {"notify_ready", "notify_finish"},
        ("QUEUED", "STARTED"): {"start", "join"},
        ("STARTED", "FINISHED"): {"notify_finish"},
        ("FINISHED", "QUEUED"): {"notify_ready", "notify_finish"},  # in the next iteration
    }


@pytest.mark.parametrize(("case", "seconds"), [("fifo", 11), ("priority", 10), ("parts", 9)])
def test_the_pictures_show_the_case_that_was_worked_by_hand(
    generators: ModuleType, case: str, seconds: int
) -> None:
    assert importlib.import_module("generators.pictures").ask(case).iteration_s == seconds


def test_everything_that_pages_include_is_generated(generators: ModuleType, tmp_path: Path) -> None:
    generators.write_all(tmp_path)
    included = {
        name for page in PAGES for name in re.findall(r"generated/([\w.-]+)", page.read_text())
    }
    assert included == {path.name for path in tmp_path.iterdir()}
