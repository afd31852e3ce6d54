"""Random command lines, files and environments, for every verb.

What is known of the answer is little: a documented exit code, no traceback, and a refusal comes
soon. Verbs that only compute run in this process, thousands of them in a few minutes. The others
start labs or ranks, and run as what they are.
"""

import contextlib
import io
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import typer
from hypothesis import strategies as st

from bytelane.cli.main import app, main
from bytelane.core import policy_names

REFUSED_S = 5.0
# However busy the machine is.
ENDED_S = 120.0
# Of lab run: the timeout, and what a shell says of a command that cannot be started.
CODES = {0, 1, 2, 124, 126, 127}

JOB = b"""name = "small"
outside_ms = 0.5
[[layers]]
name = "first"
forward_ms = 1.0
backward_ms = 2.0
bytes = 4000000
[[layers]]
forward_ms = "300us"
backward_ms = 4
update_ms = 0.1
bytes = "1MiB"
[[tensors]]
name = "tied"
bytes = 1000
layers = [0, 1]
"""
JOB_JSON = b"""{"name": "small", "layers": [
 {"forward_ms": 1, "backward_ms": 2, "bytes": 4000}, {"forward_ms": 0.5, "backward_ms": "1ms"}]}"""
SCHEDULE = b"at_s,rate,host\n0,1Gbit,\n0.1,500Mbit,0\n"
SCHEDULE_TOML = b'[[step]]\nat_s = 0.1\nrate = "500Mbit"\nhost = 1\n'
SIZES = b"bytes,share\n1000,0\n100000,1\n"
RECORDING = (
    b'{"type":"plan","plan":{"policy":"fifo","tensor_bytes":[8,8],"operations":['
    b'{"parts":[{"tensor":1,"start":0,"stop":8}]},{"parts":[{"tensor":0,"start":0,"stop":8}]}],'
    b'"window":{},"barrier":true},"tensor_names":["a","b"]}\n'
    b'{"type":"round","step":1,"number":0,"events":[[1.0,"ready",1],[1.5,"ready",0],'
    b'[2.0,"finish",0],[3.0,"finish",1]],"launched":[0,1]}\n'
)
GOOD = {
    "job.toml": JOB,
    "job.json": JOB_JSON,
    "steps.csv": SCHEDULE,
    "steps.toml": SCHEDULE_TOML,
    "sizes.csv": SIZES,
    "run.jsonl": RECORDING,
    "script.py": b"print('no training here')\n",
    "fails.py": b"raise SystemExit(1)\n",
    "prepared.py": b"import bytelane\nbytelane.prepare(1, 2)\n",
    "empty.toml": b"",
    "deep.toml": b"a = " + b"[" * 10_000,
    "keys.toml": b".".join([b"a"] * 10_000) + b" = 1",
    "deep.json": b"[" * 100_000,
    "digits.toml": JOB.replace(b"4000000", b"9" * 5000),
    "times.toml": JOB.replace(b"1.0", b"1e308"),
    "tensor.json": JOB_JSON.replace(b"4000", str(2**50).encode()),
}
PIECES = [b"1e999", b"-1", b"[[", b"null", b"9" * 30, b"NaN", b"", b"\xff", b"\x1b[31m"]
SPECIAL = ("pipe.toml", "zero.json", "folder.toml", "absent.toml", "sparse.json", "pipe.jsonl")


def furnish(folder: Path) -> None:
    """Put good, broken and strange files where the commands will run."""
    for name, content in GOOD.items():
        (folder / name).write_bytes(content)
    for name in ("pipe.toml", "pipe.jsonl"):
        os.mkfifo(folder / name)
    (folder / "zero.json").symlink_to("/dev/zero")
    (folder / "folder.toml").mkdir()
    with (folder / "sparse.json").open("wb") as file:
        file.truncate(2**40)


class Case(NamedTuple):
    """What is run, and with what around it."""

    arguments: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]
    environment: tuple[tuple[str, str], ...]

    @property
    def verb(self) -> str:
        return " ".join(self.arguments[: 2 if self.arguments[:1] == ("lab",) else 1])


LONG = "9" * 4400
NUMBERS = ["0", "1", "2", "3", "4", "8", "-1", "1.5", "0.1", "1e300", "1e308", "nan", "inf", "-inf"]
NUMBERS += ["99999999999999999999", "1000000000", "100000", LONG, "abc", "", " 2", "0x10", "٣"]
RATES = ["10Gbit", "1Gbit", "100Mbit", "1bit", "1e-30bit", "1e30Gbit", "10GB", "10", "-1Gbit"]
RATES += ["fast", f"{LONG}Gbit", "1e999Gbit", "", "0bit", "1gbit/s", "5Gbit,1Gbit"]
TIMES = ["0us", "0", "20us", "1.5 ms", "1e300s", "1e-300s", "1h", "-3s", "nan", "", f"{LONG}s", "5"]
SIZES_OF = ["1B", "4MiB", "64KiB", "1MB", "0", "-1B", "1e30B", LONG, "4M", "0.3B", "1e9GiB", ""]
SIZES_OF += ["1MiB,4MiB", "7"]
NAMES = [*policy_names(), "all", "auto", "fifos", "", "fifo,p3", "fifo,,p3", "\x1b[31m", "x" * 5000]
KNOBS = [
    "first=256KiB",
    "partition=1MiB",
    "credit=1",
    "first=",
    "=",
    "first",
    "nosuch=1",
    "first=0",
]
KNOBS += ["first=1MiB,2MiB", "workers=3", "policy=p3", "partition_bytes=8", f"first={LONG}"]
WAYS = ["allreduce", "ps", "psx", "", "allreduce,ps"]
OUTPUTS = ["out.svg", "out.png", "out.json", "out.toml", "out.csv", "out.exe", "", ".", "no/such/x"]
OUTPUTS += ["folder.toml", "/dev/full"]
JOBS = ["alexnet", "vgg16", "resnet50", "vgg17", "", ".", "/dev/zero", "-", "a\nb.toml", "é.json"]
MODELS = ["nosuch", "os:getcwd", "os:nosuch", "nosuch:f", ":", "cnn:", "math:pi"]
WORDS = {
    "RATE": RATES,
    "TIME": TIMES,
    "SIZE": SIZES_OF,
    "SIZES": SIZES_OF,
    "NAME": NAMES,
    "NAMES": NAMES,
    "WAY": WAYS,
    "MODE": ["auto", "pacing", "namespaces", ""],
    "QUEUE": ["htb", "fifo", ""],
    "BAND": ["high", "middle", ""],
    "WHERE": ["serial", "nowhere", "dask://", ""],
    "OPTIONS": ["--nosuch", "--help", "--nnodes", "'", "x.py", "--nnodes=x"],
    "FOLDER": OUTPUTS,
    "NAME=VALUE": KNOBS,
}
# These only compute; timeline takes a second to draw, and every sweep with all policies a few.
IN_PROCESS = ("simulate", "compare", "why", "zoo", "policies", "replay", "sweep", "timeline")
OFTEN = ("simulate", "simulate", "why", "compare", "zoo", "policies", "replay", "replay", "sweep")
# "lab clean" would end what others have left on purpose.
REAL = ("lab run", "lab check", "lab traffic", "try", "profile", "profile-network", "bench")
REAL += ("overlay", "doctor")
# What would train or wait for minutes if the rest of the line is right, so it is not.
HINDERED = {
    "bench": ["--workers", "3"],
    "overlay": ["--workers", "3"],
    "try": ["--repetitions", "0"],
    "lab traffic": ["--load", "5"],
    "lab check": ["--rate", "1Gbit", "--mode", "pacing", "--seconds", "0.2"],
    "profile-network": [],
}


def _command(verb: str) -> Any:
    command: Any = typer.main.get_command(app)
    for word in verb.split():
        command = command.commands[word]
    return command


def _words(option: Any) -> st.SearchStrategy[str]:
    """Return what is said for an option: mostly something of its kind."""
    kind = str(option.metavar or "").rstrip(".,").split("[")[0]
    if option.name in ("schedule", "sizes", "traffic_sizes"):
        return st.sampled_from([*GOOD, *SPECIAL])
    if kind == "FILE":  # no pipe: who writes into one waits for its reader, as everywhere
        return st.sampled_from(OUTPUTS)
    if kind in WORDS:
        return st.sampled_from(WORDS[kind])
    return st.sampled_from(NUMBERS)


@st.composite
def cases(draw: st.DrawFn, verbs: tuple[str, ...]) -> Case:
    """Draw a command line for one of the verbs, with options that it has and some that it has not.

    Every second one has a single strange word, so that what comes after the first check is reached.
    """
    verb = draw(st.sampled_from(verbs))
    arguments = list(_subjects(draw, verb)) + HINDERED.get(verb, [])
    options = [p for p in _command(verb).params if p.param_type_name == "option" and p.opts]
    wanted = draw(st.lists(st.sampled_from(options), max_size=draw(st.sampled_from([1, 1, 4, 6]))))
    for option in wanted:
        if option.name in ("help", "as_json") or option.is_flag:
            arguments.append(draw(st.sampled_from([*option.opts, *option.secondary_opts])))
        else:
            arguments += [option.opts[-1], draw(_words(option))]
    if draw(st.integers(0, 15)) == 0:
        arguments.append(draw(st.sampled_from(["--nosuch", "--wrokers", "extra", "--json=1", "-"])))
    if verb == "lab run":
        arguments += draw(st.sampled_from([["--", "true"], ["--", "false"], ["--", "./no"], []]))
    files = draw(st.lists(_broken_file(), max_size=1))
    return Case((*verb.split(), *arguments), tuple(files), draw(_environments()))


def _subjects(draw: st.DrawFn, verb: str) -> Iterator[str]:
    """Yield what the verb is about: a job, a script, a recording, a model."""
    files = [*GOOD, *SPECIAL]
    if verb in ("simulate", "compare", "why", "timeline", "sweep", "bench", "overlay"):
        names = [*JOBS[:3] * 4, "job.toml", "job.json", *JOBS, *files, *MODELS[: verb == "bench"]]
        yield draw(st.sampled_from(names))
        if verb == "bench" and draw(st.booleans()):
            yield "--real"
    elif verb == "replay":
        yield draw(st.sampled_from(["run.jsonl"] * 8 + files))
    elif verb in ("try", "profile"):
        yield draw(st.sampled_from(["script.py", "fails.py", "prepared.py", *files, ".", ""]))
    elif verb == "zoo" and draw(st.booleans()):
        yield draw(st.sampled_from(JOBS))
    elif verb == "policies" and draw(st.booleans()):
        yield draw(st.sampled_from(NAMES))


@st.composite
def _broken_file(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw one of the good files with some bytes changed, left out or doubled."""
    name = draw(st.sampled_from(["job.toml", "job.json", "run.jsonl", "steps.csv", "sizes.csv"]))
    content = bytearray(GOOD[name])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        length = draw(st.integers(0, 12))
        new = draw(st.binary(max_size=4) | st.sampled_from(PIECES))
        content[place : place + length] = new
    return name, bytes(content)


def _environments() -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
    values = {
        "COLUMNS": ["0", "-1", "wide", "20", "400"],
        "TERM": ["", "dumb", "xterm"],
        "NO_COLOR": ["", "1"],
        "RANK": ["x", "", "-1"],
        "WORLD_SIZE": ["y", "1", ""],
        "BYTELANE_CACHE": ["", "/dev/null/x"],
        "LC_ALL": ["C", "no_SUCH"],
    }
    pairs = st.sampled_from(list(values)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(values[name]))
    )
    return st.lists(pairs, max_size=2).map(lambda found: tuple(dict(found).items()))


class TooLong(BaseException):
    """Not an Exception, so that nothing takes it for something else."""


class Ended(NamedTuple):
    """How a command has ended."""

    code: object
    out: str
    err: str
    seconds: float


@contextlib.contextmanager
def _files_of(case: Case) -> Iterator[None]:
    for name, content in case.files:
        Path(name).write_bytes(content)
    try:
        yield
    finally:
        for name, _ in case.files:
            Path(name).write_bytes(GOOD[name])


def run_here(case: Case) -> Ended:
    """Run a verb in this process, in the present folder; processor time counts."""

    def too_long(*_: object) -> None:
        raise TooLong(f"not ended within {ENDED_S:g} s: {case}")

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, ENDED_S)
    began = time.process_time()
    try:
        with (
            _files_of(case),
            mock.patch.object(sys, "argv", ["bytelane", *case.arguments]),
            mock.patch.dict(os.environ, dict(case.environment)),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
                code: object = "no SystemExit"
            except SystemExit as end:
                code = 0 if end.code is None else end.code
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    seconds = time.process_time() - began
    for stream in (out, err):
        stream.flush()
    texts = (stream.buffer.getvalue().decode(errors="replace") for stream in (out, err))
    return Ended(code, *texts, seconds)


def run_apart(case: Case) -> Ended:
    """Run a verb as a process of its own, in the present folder; processor time counts."""
    environment = {**os.environ, **dict(case.environment)}
    before = _children_s()
    with _files_of(case):
        done = subprocess.run(
            [sys.executable, "-m", "bytelane", *case.arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ENDED_S,
            env=environment,
            check=False,
        )
    seconds = _children_s() - before
    texts = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return Ended(done.returncode, *texts, seconds)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def complaint(case: Case, ended: Ended, refused_s: float = REFUSED_S) -> str:
    """Return what is wrong with the end of a command, or an empty text."""
    if ended.code not in CODES:
        return f"exit code {ended.code!r}"
    if "Traceback (most recent call last)" in ended.err + ended.out:
        return "a traceback"
    if ended.code == 2:
        last = ended.err.rstrip("\n").rpartition("\n")[2]
        if not last.startswith("bytelane: error: ") and "Usage:" not in ended.out + ended.err:
            return f"refused without a sentence: {last!r}"
        if ended.seconds > refused_s:
            return f"refused after {ended.seconds:.1f} s"
    return ""
