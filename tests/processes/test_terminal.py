"""Names that come from files, models and peers cannot steer a terminal, nor break a picture."""

import ast
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bytelane
from bytelane.cli import main
from bytelane.cli.output import progress_line
from bytelane.core import Event, Knobs
from bytelane.errors import InputError, PeerFailed
from bytelane.job import Job, Layer, Tensor, save
from bytelane.sim import make_planner
from bytelane.terminal import one_line, printable
from bytelane.trace.recording import PlanLine, Recorder, RoundLine

Run = Callable[..., tuple[int, str, str]]

# Red, the title, a carriage return, one byte that begins a sequence, text from right to left, and
# what rich and matplotlib would read as markup.
EVIL = "a\x1b[31mb\x1b]0;title\x07c\rd\x9b2Je\u202ef[red]g[/]h$i<b>&j"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
SOURCES = Path(bytelane.__file__).parent
# Their standard output is read by the process that has started them, and printed there.
AGENTS = {"lab/flows.py", "lab/bulk.py", "bench/rank.py", "bench/trainers.py"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bytelane", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job and a recording, all of whose names are evil."""
    monkeypatch.chdir(tmp_path)
    layers = tuple(Layer(f"{EVIL}{i}\nk", 1e-3, 1e-3) for i in range(3))
    tensors = tuple(Tensor(f"{EVIL}{i}\nk", 4000, (i,)) for i in range(3))
    job = Job(f"{EVIL}\nk", layers, tensors)
    save(job, tmp_path / "job.json")
    recorder = Recorder(tmp_path / "recording.jsonl")
    plan = make_planner("fifo", Knobs()).plan(job)
    recorder.write(PlanLine(plan, tuple(tensor.name for tensor in tensors)))
    ready = tuple(Event(0.0, "ready", tensor) for tensor in range(3))
    recorder.write(RoundLine(0, 0, ready, (2, 1, 0)))
    recorder.close()
    (tmp_path / "broken.json").write_text(json.dumps({"name": "x", EVIL: 1}))
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "job.json"],
        ["compare", "job.json"],
        ["why", "job.json"],
        ["sweep", "job.json", "--workers", "2,3"],
        ["sweep", "job.json", "vgg16"],
        ["replay", "recording.jsonl"],
        ["zoo", "alexnet", "--out", f"{EVIL.replace('/', '')}.toml"],
        # What is wrong is quoted.
        ["simulate", EVIL],
        ["simulate", "broken.json"],
        ["simulate", "job.json", "--policy", EVIL],
        ["simulate", "job.json", "--bandwidth", EVIL],
        ["simulate", "job.json", EVIL],
        ["simulate", "job.json", f"--{EVIL}"],
        [EVIL],
        ["replay", EVIL],
        ["timeline", "job.json", "--out", EVIL],
        ["sweep", "job.json", "--policy", EVIL],
        ["zoo", EVIL],
        ["profile", EVIL],
        ["try", EVIL, "--here"],
        ["bench", EVIL],
        ["overlay", "job.json", "--policy", EVIL],
        ["lab", "run", "--rate", EVIL, "--", "true"],
        ["lab", "run", "--rate", "100Mbit", "--mode", "pacing", "--no-check", "--", EVIL],
        ["lab", "check", "--mode", EVIL],
    ],
    ids=lambda words: " ".join(map(ascii, words))[:60],
)
@pytest.mark.usefixtures("evil")
def test_no_verb_lets_a_name_steer_the_terminal(run: Run, words: list[str]) -> None:
    _, out, err = run(*words)
    assert not STEERS.search(out + err)
    assert "\\x1b[31mb" in out + err  # it was printed, and spelled out


@pytest.mark.parametrize("words", [["simulate"], ["why"], ["compare"], ["sweep"]])
@pytest.mark.usefixtures("evil")
def test_json_holds_the_name_itself_and_spells_it_out(run: Run, words: list[str]) -> None:
    _, out, _ = run(*words, "job.json", "--json")
    assert not STEERS.search(out)
    assert EVIL in "".join(strings_of(json.loads(out)))


def strings_of(document: object) -> list[str]:
    if isinstance(document, dict):
        return [text for value in document.values() for text in strings_of(value)]
    if isinstance(document, list):
        return [text for value in document for text in strings_of(value)]
    return [document] if isinstance(document, str) else []


@pytest.mark.usefixtures("evil")
def test_a_name_with_line_ends_stays_in_its_line(run: Run) -> None:
    _, out, _ = run("compare", "job.json")
    assert out.splitlines()[0].startswith("a\\x1b[31mb")
    assert "\\x0ak on" in out.splitlines()[0]


@pytest.mark.parametrize(
    "words",
    [
        ["timeline", "job.json", "--out"],
        ["compare", "job.json", "--plot"],
        ["sweep", "job.json", "vgg16", "--workers", "2,3", "--plot"],
    ],
)
def test_a_picture_of_any_names_is_a_valid_file(run: Run, evil: Path, words: list[str]) -> None:
    picture = evil / f"{EVIL.replace('/', '')}.svg"
    code, out, err = run(*words, picture)
    assert code == 0
    assert not STEERS.search(out + err)
    ElementTree.parse(picture)


def test_only_one_module_prints() -> None:
    """Every other one would have to remember what a name may hold."""
    printing = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Name("print") | ast.Attribute(
                    ast.Attribute(_, "stdout" | "stderr"), "write"
                ):
                    printing.add(path.relative_to(SOURCES).as_posix())
    assert printing == {"terminal.py"} | AGENTS


def test_errors_cannot_steer_the_terminal_in_a_traceback_either() -> None:
    for error in (InputError(EVIL), PeerFailed(f"rank 1 failed: {EVIL}", 1)):
        assert not STEERS.search(str(error))
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from bytelane.errors import PeerFailed; raise PeerFailed({EVIL!r}, 1)",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not STEERS.search(done.stderr)


def test_a_line_of_progress_is_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    with progress_line("starting") as progress:
        progress(f"{EVIL}[/bold]")
    assert "[31mb" not in capsys.readouterr().err.replace("\\x1b[31mb", "")


@given(st.text())
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert not STEERS.search(printable(text))
    assert printable(printable(text)) == printable(text)
    assert "\n" not in one_line(text)
    if text.isprintable():
        assert printable(text) == one_line(text) == text


def test_letters_of_every_language_stay() -> None:
    text = "größe 層 слой \N{FAMILY} שכבה \N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}"
    assert printable(text) == text
    assert msgspec.json.decode(msgspec.json.encode(text)) == text
